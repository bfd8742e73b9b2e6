// Steps on disk: real files in a folder of the test's own.
#include "agent/disk_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "agent/content_hash.h"

namespace smon_rt {
namespace {

namespace fs = std::filesystem;

class DiskStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "smon_rt-disk-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  /// A little more than a chunk, so that there are two.
  static std::vector<std::byte> content_of(unsigned seed) {
    std::vector<std::byte> content(kChunkBytes + 5000);
    for (std::size_t i = 0; i < content.size(); ++i)
      content[i] = static_cast<std::byte>((i * 31 + seed * 7 + i / 251) & 0xff);
    return content;
  }
  static Result<void> write(const DiskStore& store, Label label, unsigned seed = 1) {
    const auto first = content_of(seed);
    const auto second = content_of(seed + 1);
    const std::vector<StagedShard> shards = {{"dp=0", "world 2", first}, {"dp=1", "world 2", second}};
    return store.write(label, shards);
  }
  static std::vector<Label> labels_of(const DiskStore& store) {
    std::vector<Label> labels;
    const auto listing = store.list();
    EXPECT_TRUE(listing);
    if (!listing) return labels;
    for (const DiskManifest& step : listing->steps) labels.push_back(step.label);
    return labels;
  }
  static void overwrite(const std::string& path, std::size_t offset, char value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(value);
    ASSERT_TRUE(file.flush());
  }

  std::string directory_;
};

TEST_F(DiskStoreTest, WhatWasWrittenIsLoadedBitForBit) {
  const DiskStore store(directory_, "job");
  ASSERT_TRUE(write(store, {2, 30}));
  const auto loaded = store.load("dp=1", {2, 30});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto expected = content_of(2);
  const auto content = (*loaded)->content();
  ASSERT_EQ(content.size(), expected.size());
  EXPECT_EQ(std::memcmp(content.data(), expected.data(), expected.size()), 0);

  const auto header = (*loaded)->read_header();
  ASSERT_TRUE(header);
  EXPECT_EQ(header->label, (Label{2, 30}));
  EXPECT_EQ(header->owner, "dp=1");
  EXPECT_EQ(header->run_id, "job");
  EXPECT_EQ(header->topology, "world 2");
  EXPECT_EQ((*loaded)->compute_hash(header->generation), header->content_hash);
}

TEST_F(DiskStoreTest, AFileHasTheBytesOfTheStateAndNoOthers) {
  const DiskStore store(directory_, "job");
  ASSERT_TRUE(write(store, {0, 5}));
  std::ifstream file(store.folder() + "/step-0-5/0.safetensors", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto expected = content_of(1);
  ASSERT_EQ(bytes.size(), expected.size());
  EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), expected.size()), 0);
}

TEST_F(DiskStoreTest, AnyFlippedByteIsRefusedAndTheChunkNamed) {
  const DiskStore store(directory_, "job");
  ASSERT_TRUE(write(store, {0, 5}));
  const auto listing = store.list();
  ASSERT_TRUE(listing);
  const DiskManifest& step = listing->steps.at(0);
  ASSERT_TRUE(store.verify(step, step.shards.at(0)));
  const std::string path = store.folder() + "/step-0-5/0.safetensors";
  const auto original = content_of(1);
  for (const std::size_t offset : {std::size_t{0}, kChunkBytes - 1, kChunkBytes, original.size() - 1}) {
    overwrite(path, offset, static_cast<char>(std::to_integer<int>(original[offset]) ^ 0x10));
    const auto loaded = store.load("dp=0", {0, 5});
    ASSERT_FALSE(loaded);
    EXPECT_NE(loaded.error().message.find("chunk " + std::to_string(offset / kChunkBytes)), std::string::npos)
        << loaded.error().message;
    EXPECT_FALSE(store.verify(step, step.shards.at(0)));
    overwrite(path, offset, static_cast<char>(original[offset]));
  }
  EXPECT_TRUE(store.load("dp=0", {0, 5}));
  EXPECT_TRUE(store.load("dp=1", {0, 5}));
}

TEST_F(DiskStoreTest, AFileOfAnotherSizeIsRefused) {
  const DiskStore store(directory_, "job");
  ASSERT_TRUE(write(store, {0, 5}));
  const std::string path = store.folder() + "/step-0-5/0.safetensors";
  fs::resize_file(path, 100);
  EXPECT_FALSE(store.load("dp=0", {0, 5}));
  fs::remove(path);
  EXPECT_FALSE(store.load("dp=0", {0, 5}));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(store.load("dp=0", {0, 5})) << "and does not wait for a writer";
}

TEST_F(DiskStoreTest, AWriteThatFailsAtAnyCallLeavesNoStepAndTheNextSucceeds) {
  int calls_left = 0;
  int failed = ENOSPC;
  DiskCalls calls = DiskCalls::of_system();
  const auto fails = [&] {
    if (calls_left-- > 0) return false;
    errno = failed;
    return true;
  };
  calls.write = [&](int fd, const void* data, std::size_t bytes) {
    return fails() ? ssize_t{-1} : ::write(fd, data, bytes);
  };
  calls.sync = [&](int fd) { return fails() ? -1 : ::fsync(fd); };
  const DiskStore store(directory_, "job", calls);

  int failures = 0;
  for (;; ++failures) {
    calls_left = failures;
    failed = failures % 2 == 0 ? ENOSPC : EIO;
    const Result<void> written = write(store, {0, 5});
    if (written) break;
    EXPECT_NE(written.error().message.find(std::strerror(failed)), std::string::npos) << written.error().message;
    EXPECT_TRUE(labels_of(store).empty());
    EXPECT_FALSE(fs::exists(store.folder() + "/step-0-5")) << "it would fill the disk";
    ASSERT_LT(failures, 100);
  }
  // Two files of two writes, one sync each; manifest: a write, a sync; folders: four syncs.
  EXPECT_EQ(failures, 12);
  EXPECT_TRUE(store.load("dp=0", {0, 5}));
}

TEST_F(DiskStoreTest, StepsWithoutAManifestAreNone) {
  const DiskStore store(directory_, "job");
  ASSERT_TRUE(write(store, {0, 5}));
  ASSERT_TRUE(write(store, {0, 6}));
  fs::remove(store.folder() + "/step-0-6/manifest.json");
  EXPECT_EQ(labels_of(store), (std::vector<Label>{{0, 5}}));
  EXPECT_FALSE(store.load("dp=0", {0, 6}));
}

TEST_F(DiskStoreTest, BytesThatAreNotWhatWasCapturedAreNotWritten) {
  const DiskStore store(directory_, "job");
  const auto content = content_of(1);
  std::vector<std::uint64_t> hashes(chunk_count(content.size()));
  const std::uint64_t hash = hash_content(content, hashes);
  EXPECT_FALSE(store.write({0, 5}, std::vector<StagedShard>{{"dp=0", "", content, hash + 1}}));
  EXPECT_TRUE(labels_of(store).empty());
  EXPECT_TRUE(store.write({0, 5}, std::vector<StagedShard>{{"dp=0", "", content, hash}}));
}

TEST_F(DiskStoreTest, RemovesWhatKilledWritersLeft) {
  const DiskStore store(directory_, "job");
  ASSERT_TRUE(write(store, {0, 5}));
  ASSERT_TRUE(write(store, {0, 6}));
  fs::create_directory(store.folder() + "/step-0-7");
  fs::create_directory(store.folder() + "/step-0-8");
  std::ofstream(store.folder() + "/step-0-6/manifest.json") << "damaged";
  ASSERT_TRUE(store.remove_incomplete({0, 8}));
  EXPECT_FALSE(fs::exists(store.folder() + "/step-0-7"));
  EXPECT_TRUE(fs::exists(store.folder() + "/step-0-8"));
  EXPECT_TRUE(fs::exists(store.folder() + "/step-0-6")) << "for a person to look at";
  EXPECT_EQ(labels_of(store), (std::vector<Label>{{0, 5}}));
}

TEST_F(DiskStoreTest, KeepsTheNewestCompleteStepsAndSweepsWhatIsOlder) {
  const DiskStore store(directory_, "job");
  for (const Label label : {Label{0, 5}, Label{0, 10}, Label{1, 7}, Label{1, 14}}) ASSERT_TRUE(write(store, label));
  fs::remove(store.folder() + "/step-0-5/manifest.json");
  fs::create_directory(store.folder() + "/step-1-21");     // being written, by another agent perhaps
  fs::create_directory(store.folder() + "/step-0-5-old");  // somebody's own
  ASSERT_TRUE(store.remove_older(2));
  EXPECT_EQ(labels_of(store), (std::vector<Label>{{1, 7}, {1, 14}})) << "a later incarnation is newer";
  EXPECT_FALSE(fs::exists(store.folder() + "/step-0-5"));
  EXPECT_FALSE(fs::exists(store.folder() + "/step-0-10"));
  EXPECT_TRUE(fs::exists(store.folder() + "/step-1-21"));
  EXPECT_TRUE(fs::exists(store.folder() + "/step-0-5-old"));
}

TEST_F(DiskStoreTest, TwoJobsInOneDirectoryDoNotMeet) {
  const DiskStore one(directory_, "job/a");
  const DiskStore other(directory_, "job_a");
  ASSERT_TRUE(write(one, {0, 5}, 1));
  ASSERT_TRUE(write(other, {0, 6}, 9));
  ASSERT_TRUE(other.remove_older(1));
  EXPECT_EQ(labels_of(one), (std::vector<Label>{{0, 5}}));
  EXPECT_EQ(labels_of(other), (std::vector<Label>{{0, 6}}));
}

TEST_F(DiskStoreTest, NothingThereIsEmptyAndAFolderThatCannotBeIsAnError) {
  EXPECT_TRUE(labels_of(DiskStore(directory_ + "/none", "job")).empty());
  std::ofstream(directory_ + "/file") << "x";
  const DiskStore store(directory_ + "/file", "job");
  EXPECT_FALSE(write(store, {0, 5}));
  EXPECT_FALSE(store.list());
}

TEST_F(DiskStoreTest, DamagedManifestsAreNamedAndOthersStillListed) {
  const DiskStore store(directory_, "job");
  ASSERT_TRUE(write(store, {0, 5}));
  ASSERT_TRUE(write(store, {0, 10}));
  const std::string path = store.folder() + "/step-0-10/manifest.json";
  std::ifstream file(path);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const std::map<std::string, std::string> damages = {
      {"0.safetensors", "../safetensors"}, {"dp=1", "dp=0"}, {"\"step\": 10", "\"step\": 11"},
      {"\"step\": 10", "\"step\": -1"},    {"{", "["},       {"\"run_id\": \"job\"", "\"run_id\": \"jab\""},
  };
  for (const auto& [from, to] : damages) {
    std::string text = good;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(path) << text;
    const auto listing = store.list();
    ASSERT_TRUE(listing);
    EXPECT_EQ(listing->steps.size(), 1U) << from;
    EXPECT_EQ(listing->problems.size(), 1U) << from;
  }
  for (std::size_t cut = 0; cut + 2 < good.size(); cut += 37) {
    EXPECT_FALSE(decode_disk_manifest(std::string_view(good).substr(0, cut))) << cut;
  }
  EXPECT_TRUE(decode_disk_manifest(good));
}

}  // namespace
}  // namespace smon_rt
