#pragma once

#include <cstdint>

/// What a profiler plug-in of somebody else has been told, and what it does: looked up by name ("fake_nccl_plugin") in
/// the library that a test loads. Its contexts and handles are pointers, which only it may be handed.
struct FakeNcclPlugin {
  // Set by the test.
  int mask = 0;            // what it asks for at each init
  bool must_fail = false;  // whatever it is told

  // Counted by it.
  std::uint64_t inits = 0;
  std::uint64_t starts = 0;
  std::uint64_t stops = 0;
  std::uint64_t records = 0;
  std::uint64_t finalizes = 0;
  std::uint64_t unasked = 0;      // events that it did not ask for
  std::uint64_t orphans = 0;      // ops without a call, transfers without an op, steps without a transfer
  std::uint64_t foreign = 0;      // contexts, handles and parents that it never gave
  std::uint64_t foreign_pid = 0;  // transfers of another process's ops, with a parent that it never gave
  std::uint64_t types = 0;        // bits of all events
  int* asked_by_init = nullptr;   // the mask that it was handed last, which it may change
};
