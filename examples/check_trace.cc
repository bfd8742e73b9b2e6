// What the examples recorded, for their tests: runs an example into a fresh directory, reads the trace back and counts.
//
//     check_trace PROGRAM STEPS MICROBATCHES

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "format/kind.h"
#include "format/trace_reader.h"

namespace {

class Counter final : public smon_rt::TraceVisitor {
 public:
  void on_spans(const smon_rt::SpanBatch& batch) override {
    for (const smon_rt::Span& span : batch.spans) {
      ++spans[span.kind];
      if (span.end < span.start) ++negative;
    }
  }
  void on_step_times(std::span<const smon_rt::StepTime> step_times) override { steps += step_times.size(); }
  void on_end(std::string_view) override { has_end = true; }
  void on_damage(std::uint64_t offset, std::string_view what) override {
    std::printf("damage at %llu: %.*s\n", static_cast<unsigned long long>(offset), static_cast<int>(what.size()),
                what.data());
    ++negative;
  }

  std::map<smon_rt::Kind, std::size_t> spans;
  std::size_t steps = 0;
  std::size_t negative = 0;
  bool has_end = false;
};

int run(const std::string& program, const std::string& directory, const std::string& steps) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(program.c_str(), program.c_str(), directory.c_str(), steps.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

bool expect(const char* what, std::size_t found, std::size_t wanted) {
  std::printf("%-18s %zu\n", what, found);
  if (found != wanted) std::printf("  expected %zu\n", wanted);
  return found == wanted;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::size_t steps = std::stoul(argv[2]);
  const std::size_t microbatches = std::stoul(argv[3]);
  std::string directory = (std::filesystem::temp_directory_path() / "smon-example-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return 2;
  bool is_good = expect("exit status", static_cast<std::size_t>(run(argv[1], directory, argv[2])), 0);

  Counter counter;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    smon_rt::read_trace(std::as_bytes(std::span(bytes)), {}, counter);
  }
  std::filesystem::remove_all(directory);
  using smon_rt::Kind;
  is_good &= expect("forward_compute", counter.spans[Kind::kForwardCompute], steps * microbatches);
  is_good &= expect("backward_compute", counter.spans[Kind::kBackwardCompute], steps * microbatches);
  is_good &= expect("optimizer", counter.spans[Kind::kOptimizer], steps);
  is_good &= expect("step", counter.spans[Kind::kStep], steps);
  is_good &= expect("metric", counter.spans[Kind::kMetric], steps);
  is_good &= expect("step times", counter.steps, steps);
  is_good &= expect("problems", counter.negative, 0);
  is_good &= expect("closed", counter.has_end, 1);
  return is_good ? 0 : 1;
}
