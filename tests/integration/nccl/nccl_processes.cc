// What comes from another process, or from another copy of the library.

#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "nccl_library.h"

namespace smon_rt::testing {
namespace {

using nccl::EventState;
using Version = Nccl<nccl::EventV6>;

/// Runs in a child that has loaded nothing yet, and gives what it writes into the array. By a pipe.
std::array<std::uint64_t, 4> in_another_process(const std::function<void(std::array<std::uint64_t, 4>&)>& function) {
  std::array<int, 2> ends{};
  std::array<std::uint64_t, 4> told{};
  if (::pipe(ends.data()) != 0) return told;
  const pid_t child = ::fork();
  if (child == 0) {
    function(told);
    const bool is_written = ::write(ends[1], told.data(), sizeof(told)) == sizeof(told);
    ::_exit(is_written && !::testing::Test::HasFailure() ? 0 : 1);
  }
  ::close(ends[1]);
  EXPECT_EQ(::read(ends[0], told.data(), sizeof(told)), static_cast<ssize_t>(sizeof(told)));
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return told;
}

std::uint64_t number(void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}
void* pointer(std::uint64_t number) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
}

class NcclProcesses : public NcclTest {};

// Not a fixture's: nothing may be loaded before the fork.
TEST(NcclOtherProcess, ItsContextsAndHandlesAreKnownByTheirNonce) {
  const std::string run_id = "nccl-other-" + std::to_string(::getpid());
  const auto there = in_another_process([&](std::array<std::uint64_t, 4>& told) {
    Library library;
    EXPECT_EQ(library.start(run_id, 1), SMON_OK);
    const Version nccl(library);
    int mask = 0;
    void* context = nccl.init(1, 2, &mask);
    void* op = nccl.coll(context, nullptr);
    void* sub = nccl.proxy_op(context, op, 0, true);
    told = {number(context), number(op), number(sub), number(nccl.proxy_step(context, sub, 0))};
    library.stop();
  });
  Library library;
  ASSERT_EQ(library.start(run_id, 0), SMON_OK);
  const Version nccl(library);
  int mask = 0;
  const smon_status before = library.status();
  void* context = nccl.init(1, 2, &mask);
  void* op = nccl.coll(context, nullptr);
  void* sub = nccl.proxy_op(context, op, 0, true);
  void* step = nccl.proxy_step(context, sub, 0);
  // Theirs, with the index and the generation of ours: nothing else tells them apart.
  constexpr std::uint64_t kWithoutNonce = 0xffff'ffff'ffff;
  const auto foreign = [&](void* ours) {
    return pointer((number(ours) & kWithoutNonce) | (there[3] & ~kWithoutNonce));
  };
  ASSERT_NE(foreign(step), step);
  EXPECT_EQ(nccl.coll(foreign(context), nullptr), nullptr);
  EXPECT_EQ(nccl.proxy_op(foreign(context), foreign(op), 0, true, ::getpid() + 1), nullptr);
  nccl.record(foreign(step), EventState::kStepSendWait, 10);
  for (void* handle : {op, sub, step}) nccl.stop(foreign(handle));
  nccl.finalize(foreign(context));
  EXPECT_EQ(library.status().nccl_foreign_handles - before.nccl_foreign_handles, 7u);
  EXPECT_EQ(library.status().nccl_stale_handles, before.nccl_stale_handles);
  nccl.record(step, EventState::kStepSendWait, 10);
  nccl.stop(step);
  EXPECT_EQ(library.status().nccl_foreign_handles - before.nccl_foreign_handles, 7u) << "ours still count";
  nccl.finalize(context);
  library.stop();
}

TEST_F(NcclProcesses, ATransferForAnotherProcessCountsForTheChannelAlone) {
  const Version nccl(library_);
  int mask = 0;
  void* context = nccl.init(31, 2, &mask);
  // With PXN the context is of the process that has the proxy thread, the op of the one it sends for.
  void* sub = nccl.proxy_op(context, pointer(0x7f0000001234), 2, true, ::getpid() + 1);
  ASSERT_NE(sub, nullptr);
  nccl.stop(nccl.proxy_step(context, sub, 0));
  nccl.stop(sub);
  EXPECT_EQ(channel(31, 2, true)->done, 1u);
  EXPECT_EQ(grown(&smon_status::nccl_foreign_handles), 0u) << "its op was not even looked at";
  nccl.finalize(context);
}

TEST_F(NcclProcesses, AForkedChildLeavesTheParentsCountersAlone) {
  const Version nccl(library_);
  int mask = 0;
  void* context = nccl.init(32, 2, &mask);
  void* op = nccl.coll(context, nullptr);
  nccl.transfer(context, op, 0, true, 2, 10);
  void* sub = nccl.proxy_op(context, op, 0, true);
  void* step = nccl.proxy_step(context, sub, 0);
  in_another_process([&](std::array<std::uint64_t, 4>&) {
    EXPECT_EQ(nccl.coll(context, nullptr), nullptr);
    nccl.record(step, EventState::kStepSendWait, 10);
    nccl.stop(step);
    nccl.stop(op);
    int child_mask = -1;
    void* child_context = nccl.init(33, 2, &child_mask);
    EXPECT_NE(child_context, nullptr);
    EXPECT_EQ(child_mask, 0) << "nobody started recording here";
    nccl.finalize(context);
  });
  EXPECT_EQ(channel(32, 0, true)->done, 2u);
  EXPECT_EQ(channel(32, 0, true)->moved, 2u);
  nccl.stop(step);
  EXPECT_EQ(channel(32, 0, true)->done, 3u);
  EXPECT_NE(mask, 0);
  nccl.finalize(context);
}

TEST_F(NcclProcesses, AChildThatStartsRecordingHasCommunicatorsOfItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no new threads in the child of a process that has several";
#endif
  const Version nccl(library_);
  int mask = 0;
  void* context = nccl.init(34, 2, &mask);
  in_another_process([&](std::array<std::uint64_t, 4>&) {
    EXPECT_EQ(library_.start(run_id_, 5), SMON_OK);
    int child_mask = -1;
    void* child_context = nccl.init(35, 2, &child_mask);
    EXPECT_NE(child_mask, 0);
    EXPECT_NE(nccl.coll(child_context, nullptr), nullptr);
    EXPECT_EQ(nccl.coll(context, nullptr), nullptr) << "the parent's";
    library_.stop();
  });
  nccl.finalize(context);
}

/// A copy of the library, for as long as it is wanted.
class Copy {
 public:
  explicit Copy(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(::getpid()) + ".so")) {
    std::filesystem::copy_file(SMON_RT_LIBRARY, path_, std::filesystem::copy_options::overwrite_existing);
  }
  ~Copy() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST_F(NcclProcesses, ACopyInWhichNobodyRecordsStaysInert) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "to AddressSanitizer two copies of an instrumented library are one";
#endif
  const Copy copy("smon-inert");
  const Library library(copy.path());
  const Version nccl(library);
  int mask = -1;
  void* context = nccl.init(36, 2, &mask);
  EXPECT_NE(context, nullptr);
  EXPECT_EQ(mask, 0);
  EXPECT_EQ(nccl.coll(context, nullptr), nullptr);
  nccl.finalize(context);
  EXPECT_EQ(grown(&smon_status::nccl_communicators), 0u);
}

TEST(NcclCopy, BesideTheLibraryThatWasNamedToNcclItIsInertWhateverItRecords) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "to AddressSanitizer two copies of an instrumented library are one";
#endif
  struct stat status{};
  ASSERT_EQ(::stat(SMON_RT_LIBRARY, &status), 0);
  const std::string named =
      std::to_string(::getpid()) + ":" + std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
  ::setenv("SMON_RT_NCCL_INSTANCE", named.c_str(), 1);
  const std::string run_id = "nccl-copy-" + std::to_string(::getpid());
  const Copy copy("smon-beside");
  const Library other(copy.path());
  const Library library;
  ASSERT_EQ(other.start(run_id, 1), SMON_OK);
  ASSERT_EQ(library.start(run_id, 0), SMON_OK);
  int mask = -1;
  const Version nccl(other);
  void* context = nccl.init(37, 2, &mask);
  EXPECT_NE(context, nullptr);
  EXPECT_EQ(mask, 0);
  EXPECT_EQ(nccl.coll(context, nullptr), nullptr);
  nccl.finalize(context);
  const Version ours(library);
  context = ours.init(37, 2, &mask);
  EXPECT_NE(mask, 0);
  EXPECT_NE(ours.coll(context, nullptr), nullptr);
  ours.finalize(context);
  library.stop();
  other.stop();
  ::unsetenv("SMON_RT_NCCL_INSTANCE");
}

TEST(NcclExports, NothingButOurNamesAndThePluginsIsExported) {
  FILE* names = ::popen("nm -D --defined-only --format=just-symbols '" SMON_RT_LIBRARY "' 2>/dev/null", "r");
  ASSERT_NE(names, nullptr);
  std::array<char, 256> line{};
  std::size_t plugins = 0;
  std::size_t all = 0;
  while (std::fgets(line.data(), line.size(), names) != nullptr) {
    const std::string name = std::string(line.data()).substr(0, std::string(line.data()).find_first_of("\n@"));
    ++all;
    if (name.starts_with("ncclProfiler_v")) ++plugins;
    EXPECT_TRUE(name.starts_with("smon_") || name == "ncclProfiler_v4" || name == "ncclProfiler_v5" ||
                name == "ncclProfiler_v6")
        << name;
  }
  ::pclose(names);
  EXPECT_EQ(plugins, 3u);
  EXPECT_GT(all, 20u);
}

}  // namespace
}  // namespace smon_rt::testing
