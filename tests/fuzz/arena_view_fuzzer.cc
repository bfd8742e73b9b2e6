// read_arena over any bytes: what it returns is never more than they hold.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "format/arena_view.h"
#include "format/in_flight.h"
#include "format/span.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto contents = smon_rt::read_arena(std::as_bytes(std::span(data, size)));
  if (!contents) {
    require(!contents.error().message.empty() && contents.error().message.find('\n') == std::string::npos);
    return 0;
  }
  std::size_t bytes = 0;
  std::int64_t total = 0;
  for (const smon_rt::ArenaThread& thread : contents->threads) {
    require(thread.name.size() <= 16);
    bytes += thread.unread.size() * sizeof(smon_rt::Span) + thread.open.size() * sizeof(smon_rt::OpenSlot);
    for (const smon_rt::Span& span : thread.unread) {
      total ^= smon_rt::in_nanoseconds(span, contents->facts.clock).end;
    }
    for (const smon_rt::OpenSpan& open : thread.open) total ^= open.span.start;
  }
  require(bytes <= size);
  require(contents->communicators.size() * sizeof(smon_rt::CommRecord) <= size);
  require(contents->facts.run_id.size() <= 64 && contents->facts.trace_file.size() <= 512);
  volatile std::int64_t sink = total;
  static_cast<void>(sink);
  return 0;
}
