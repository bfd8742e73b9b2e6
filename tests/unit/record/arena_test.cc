#include "record/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/process_state.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

namespace fs = std::filesystem;

/// Another process, which makes an arena, does something with it, and lives until it is killed.
class OtherProcess {
 public:
  OtherProcess(const ArenaOptions& options, const std::function<void(Arena&)>& use) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      auto arena = Arena::create(options);
      if (arena) use(**arena);
      const char answer = arena.has_value() ? 'y' : 'n';
      (void)!::write(ready[1], &answer, 1);
      ::pause();
      ::_exit(0);
    }
    char answer = 0;
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~OtherProcess() { kill(); }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() {
    options_.run_id = testing::unique_run_id();
    // Not /dev/shm: what is left behind is found and removed with the folder.
    directory_ = fs::temp_directory_path() / options_.run_id;
    fs::create_directories(directory_);
    options_.directory = directory_;
  }
  ~ArenaTest() override { fs::remove_all(directory_); }

  std::string path() const { return options_.directory + "/" + Arena::file_name(options_.run_id, 0, 0); }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) names.insert(entry.path().filename());
    return names;
  }

  ArenaOptions options_;
  fs::path directory_;
};

TEST_F(ArenaTest, IsAFileForItsOwnerAloneAndGoneWhenDestroyed) {
  auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  Arena& arena = **made;
  EXPECT_EQ(arena.path(), path());
  EXPECT_EQ(arena.memory(), "tmpfs");
  struct ::stat info{};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(static_cast<std::size_t>(info.st_size), arena.bytes());
  EXPECT_GE(static_cast<std::size_t>(info.st_blocks) * 512, arena.bytes()) << "reserved";
  made->reset();
  EXPECT_TRUE(files().empty());
}

TEST_F(ArenaTest, AThreadThatIsStillInsideWhenItClosesHurtsNobody) {
  auto made = Arena::create(options_);
  ASSERT_TRUE(made);
  Arena& arena = **made;
  std::atomic<std::uint64_t> writes{0};
  std::atomic<bool> must_stop{false};
  std::thread inside([&] {
    while (!must_stop.load(std::memory_order_relaxed)) {
      arena.header().drain_beat_ns.store(1, std::memory_order_relaxed);
      writes.fetch_add(1, std::memory_order_relaxed);
    }
  });
  const auto wait_for_more = [&] {
    const std::uint64_t until = writes.load(std::memory_order_relaxed) + 1000;
    while (writes.load(std::memory_order_relaxed) < until) std::this_thread::yield();
  };
  wait_for_more();
  arena.close();
  wait_for_more();
  must_stop.store(true, std::memory_order_relaxed);
  inside.join();
  EXPECT_EQ(arena.header().pid, 0) << "memory that nothing was written to but by that thread";
  EXPECT_FALSE(fs::exists(arena.path()));
}

TEST_F(ArenaTest, HoldsWhatWasDesignedInFourMebibytes) {
  auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value());
  Arena& arena = **made;
  EXPECT_LE(arena.bytes(), std::size_t{4} << 20);
  ASSERT_EQ(arena.threads().size(), 64u);
  EXPECT_EQ(arena.ring(0).size_bytes(), 256u << 10);
  EXPECT_EQ(arena.slots(0).size(), 1024u);
  EXPECT_EQ(arena.ring(63).size_bytes(), 32u << 10);
  EXPECT_EQ(arena.slots(63).size(), 64u);
}

TEST_F(ArenaTest, ItsPartsDoNotOverlapAndLieInside) {
  auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value());
  Arena& arena = **made;
  const auto* base = reinterpret_cast<const std::byte*>(&arena.header());
  std::vector<std::pair<std::size_t, std::size_t>> parts = {{0, sizeof(ArenaHeader)}};
  const auto add = [&](auto span) {
    const auto at = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(span.data()) - base);
    parts.emplace_back(at, at + span.size_bytes());
  };
  add(arena.threads());
  add(arena.communicators());
  add(arena.step_log());
  add(arena.channels());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.channels().data()) % kCacheLineBytes, 0u);
  for (std::uint32_t i = 0; i < arena.threads().size(); ++i) {
    add(arena.slots(i));
    add(arena.ring(i));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.ring(i).data()) % kCacheLineBytes, 0u);
  }
  std::sort(parts.begin(), parts.end());
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_GE(parts[i].first, parts[i - 1].second);
  EXPECT_LE(parts.back().second, arena.bytes());
}

TEST_F(ArenaTest, TheFileTellsWhoOwnsItAndWhereThingsAre) {
  options_.rank = 0;
  options_.world_size = 16;
  auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value());
  (*made)->set_trace_file("/traces/rank-00000.smon");
  std::ifstream file(path(), std::ios::binary);
  alignas(ArenaHeader) char bytes[sizeof(ArenaHeader)];
  ASSERT_TRUE(file.read(bytes, sizeof(bytes)));
  const auto& header = *reinterpret_cast<const ArenaHeader*>(bytes);
  EXPECT_EQ(std::memcmp(header.magic, kArenaMagic, sizeof(kArenaMagic)), 0);
  EXPECT_EQ(header.is_complete, 1u);
  EXPECT_EQ(header.arena_bytes, (*made)->bytes());
  EXPECT_EQ(header.pid, ::getpid());
  EXPECT_EQ(header.process_start_ticks, process_start_ticks(::getpid()));
  EXPECT_EQ(header.world_size, 16);
  EXPECT_EQ(header.run_id, options_.run_id);
  EXPECT_EQ(header.host, host_name());
  EXPECT_STREQ(header.trace_file, "/traces/rank-00000.smon");
}

TEST_F(ArenaTest, ARunIdWithSlashesCannotLeaveTheFolder) {
  options_.run_id = "../../etc/x y\n" + options_.run_id + std::string(500, 'z');
  auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ((*made)->path().find("/etc"), std::string::npos);
  EXPECT_EQ(fs::path((*made)->path()).parent_path(), directory_);
}

TEST_F(ArenaTest, ALiveProcessOfTheSameRankAndAttemptIsRefusedAndBothAreNamed) {
  OtherProcess other(options_, [](Arena&) {});
  const pid_t pid = other.pid();
  const auto refused = Arena::create(options_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find(std::to_string(pid)), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find(std::to_string(::getpid())), std::string::npos);
  EXPECT_NE(refused.error().message.find(path()), std::string::npos);

  ArenaOptions next_attempt = options_;
  next_attempt.attempt = 1;
  EXPECT_TRUE(Arena::create(next_attempt).has_value());

  other.kill();
  const auto after = Arena::create(options_);
  ASSERT_TRUE(after.has_value()) << after.error().message;
  EXPECT_EQ((*after)->memory(), "tmpfs");
  EXPECT_EQ(files().size(), 2u) << "what the dead one left is kept aside for whoever merges it";
}

TEST_F(ArenaTest, ALiveProcessWhosePidIsNotSeenHereIsKnownByItsLock) {
  // As in another container that shares /dev/shm: the header names a pid that means nothing here.
  const OtherProcess other(options_, [](Arena& arena) { arena.header().process_start_ticks += 1; });
  const auto refused = Arena::create(options_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("namespace"), std::string::npos) << refused.error().message;
}

TEST_F(ArenaTest, AProcessThatReadsItsOwnArenaStillOwnsItAcrossPidNamespaces) {
  const OtherProcess other(options_, [&](Arena& arena) {
    arena.header().process_start_ticks += 1;  // as seen from another pid namespace
    std::ifstream(path()).get();              // opened, read and closed: smon info in the process itself
  });
  const auto refused = Arena::create(options_);
  EXPECT_FALSE(refused.has_value());
}

TEST_F(ArenaTest, WhatAnotherUserLeftUnderTheNameIsPassedBy) {
  std::ofstream(path()) << "of somebody else";
  if (::chown(path().c_str(), 12345, 12345) != 0) GTEST_SKIP() << "may not give files away here";
  ::testing::internal::CaptureStderr();
  auto made = Arena::create(options_);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_EQ((*made)->path(), path() + ".1");
  EXPECT_TRUE((*made)->memory().starts_with("tmpfs, by another name: ")) << (*made)->memory();
  EXPECT_NE(log.find("belongs to another user"), std::string::npos) << log;
  EXPECT_EQ(files().size(), 2u);
  ASSERT_FALSE(Arena::create(options_).has_value()) << "ours lives, under its other name";
  made->reset();
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ArenaTest, WhereAllNamesAreTakenMemoryIsPrivate) {
  for (const std::string& name : Arena::file_names(options_.run_id, 0, 0)) fs::create_directory(directory_ / name);
  ::testing::internal::CaptureStderr();
  const auto made = Arena::create(options_);
  (void)::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_EQ((*made)->path(), "");
  EXPECT_TRUE((*made)->memory().starts_with("private: ")) << (*made)->memory();
}

TEST_F(ArenaTest, AFileThatIsNoArenaIsPutAside) {
  std::ofstream(path()) << "something else";
  const auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ((*made)->memory(), "tmpfs");
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(ArenaTest, ALinkIsNotFollowed) {
  const fs::path target = directory_ / "target";
  std::ofstream(target) << "precious";
  fs::create_symlink(target, path());
  const auto made = Arena::create(options_);
  std::string text;
  std::ifstream(target) >> text;
  EXPECT_EQ(text, "precious");
}

TEST_F(ArenaTest, WithoutTheFolderMemoryIsPrivateAndSaysWhy) {
  options_.directory = directory_ / "missing";
  const auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ((*made)->path(), "");
  EXPECT_TRUE((*made)->memory().starts_with("private: ")) << (*made)->memory();
  EXPECT_NE((*made)->memory().find("missing"), std::string::npos);
  EXPECT_EQ((*made)->ring(0).size(), 4096u);
}

TEST_F(ArenaTest, PrivateMemoryCanBeAskedFor) {
  options_.directory.clear();
  const auto made = Arena::create(options_);
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ((*made)->memory(), "private: asked for");
}

TEST_F(ArenaTest, AFileSizeLimitGivesSmallerRingsAndNoSignal) {
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit limit = before;
  limit.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto made = Arena::create(options_);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE((*made)->memory().starts_with("tmpfs, smaller rings: ")) << (*made)->memory();
  EXPECT_LE((*made)->bytes(), std::size_t{1} << 20);
  EXPECT_GE((*made)->ring(0).size(), 64u);
  EXPECT_GE((*made)->threads().size(), 4u);
}

TEST_F(ArenaTest, ATinyTmpfsGivesSmallerRingsAndAFullOneGivesPrivateMemory) {
  for (const auto& [size, expected] : {std::pair{"size=1500k", "tmpfs, smaller rings: "}, {"size=64k", "private: "}}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      // A tmpfs of our own, unseen by others; needs the right to mount.
      const fs::path mount = directory_ / "tiny";
      fs::create_directories(mount);
      constexpr int kNoRight = 77;
      const std::string command = "mount -t tmpfs -o " + std::string(size) + " smon " + mount.string() + " 2>/dev/null";
      if (::unshare(CLONE_NEWNS) != 0 || std::system("mount --make-rprivate / 2>/dev/null") != 0 ||
          std::system(command.c_str()) != 0) {
        ::_exit(kNoRight);
      }
      options_.directory = mount;
      const auto made = Arena::create(options_);
      if (!made || !(*made)->memory().starts_with(expected)) ::_exit(1);
      // Every page is there: nothing of this is SIGBUS.
      std::memset(static_cast<void*>((*made)->ring(0).data()), 1, (*made)->ring(0).size_bytes());
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "may not mount a tmpfs here";
    EXPECT_EQ(WEXITSTATUS(status), 0) << size;
  }
}

TEST_F(ArenaTest, SizesThatDoNotFitATokenAreRefused) {
  options_.sizes.threads = 257;
  EXPECT_FALSE(Arena::create(options_).has_value());
  options_.sizes.threads = 64;
  options_.sizes.ring_spans = 500;
  EXPECT_FALSE(Arena::create(options_).has_value());
  options_.sizes.ring_spans = 512;
  options_.sizes.large_slots = 0x10000;
  EXPECT_FALSE(Arena::create(options_).has_value());
}

}  // namespace
}  // namespace smon_rt
