// Writes the seeds of trace_reader_fuzzer and arena_view_fuzzer: small files and arenas with something of each sort.
//
//   make_format_seeds tests/fuzz/corpus

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena_samples.h"
#include "format/trace_encoder.h"
#include "simulated_steps.h"
#include "trace_samples.h"

namespace {

using namespace smon_rt;

void write(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The content of a single packet: without tag, length and checksum, behind the fuzzer's odd first byte.
std::string content(const std::string& packet) {
  const std::size_t length_bytes = (packet[1] & 0x80) == 0 ? 1 : 2;
  std::string seed(1, '\x01');
  seed.append(packet, 1 + length_bytes + 5);
  return seed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_format_seeds CORPUS_FOLDER\n");
    return 2;
  }
  const std::filesystem::path traces = std::filesystem::path(argv[1]) / "trace_reader_fuzzer";
  const std::vector<Span> step = test::SimulatedSteps(true).make(1);
  write(traces / "file", std::string(1, '\0') + test::sample_file(std::span(step).first(12)));
  write(traces / "file_cut", std::string(1, '\0') + test::sample_file(std::span(step).first(3)).substr(0, 700));

  using Append = void (*)(std::string&, std::span<const Span>);
  const std::pair<const char*, Append> packets[] = {
      {"identity", [](std::string& out, std::span<const Span>) { append_identity(out, test::sample_identity()); }},
      {"names", [](std::string& out, std::span<const Span>) { append_names(out, test::sample_names()); }},
      {"step_times",
       [](std::string& out, std::span<const Span>) { append_step_times(out, test::sample_step_times()); }},
      {"losses",
       [](std::string& out, std::span<const Span>) { append_losses(out, {{{1, 5}}, 1, 2, 3, 4, 5, 6, "x", 7}); }},
      {"clock", [](std::string& out, std::span<const Span>) { append_clock_snapshot(out, {-5, 6, 7, 8}); }},
      {"clock_map",
       [](std::string& out, std::span<const Span>) { append_clock_map(out, {"GPU-1", -1, 6, 1, 1, 1, 1, "event"}); }},
      {"cost",
       [](std::string& out, std::span<const Span>) { append_recorder_cost(out, {1, 2, 3, 4, 5, 6, 7, {}, {}}); }},
      {"comm_ops", [](std::string& out, std::span<const Span>) { append_comm_ops(out, test::sample_comm_ops()); }},
      {"comm_ops_random",
       [](std::string& out, std::span<const Span>) { append_comm_ops(out, test::random_comm_ops(6, 1)); }},
      {"comm_counts",
       [](std::string& out, std::span<const Span>) { append_comm_counts(out, {1, 2, 3, 4, 5, 6, 7, 8}); }},
      {"comm_channels",
       [](std::string& out, std::span<const Span>) { append_comm_channels(out, test::sample_comm_channels()); }},
      {"end", [](std::string& out, std::span<const Span>) { append_end(out, "stop"); }},
      {"spans_shaped", [](std::string& out, std::span<const Span> spans) { append_spans(out, 1, 9, spans.first(60)); }},
      {"spans_plain", [](std::string& out, std::span<const Span> spans) { append_spans(out, 1, 9, spans.first(5)); }},
      {"spans_metric", [](std::string& out, std::span<const Span> spans) { append_spans(out, 1, 9, spans.last(3)); }},
      {"spans_random",
       [](std::string& out, std::span<const Span>) { append_spans(out, 1, 9, test::random_spans(6, 1)); }},
  };
  for (const auto& [name, append] : packets) {
    std::string packet;
    append(packet, step);
    write(traces / name, content(packet));
  }

  const std::filesystem::path arenas = std::filesystem::path(argv[1]) / "arena_view_fuzzer";
  const auto as_text = [](std::span<const std::byte> bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const test::SampleArena filled = test::filled_arena();
  write(arenas / "filled", as_text(filled.bytes()));
  write(arenas / "empty", as_text(test::SampleArena().bytes()));
  write(arenas / "cut", as_text(filled.bytes()).substr(0, 3000));
  return 0;
}
