// Any bytes as a packet of a trainer's or an agent's: a message that can be written and read again, or one line.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/agent_messages.h"

namespace {

template <typename Decode>
void check(std::string_view packet, Decode&& decode) {
  const auto message = decode(packet);
  if (!message) {
    if (message.error().message.find('\n') != std::string::npos) std::abort();
    return;
  }
  const std::string once = smon_rt::agent_messages::encode(*message);
  if (once.size() > smon_rt::agent_messages::kMaxPacketBytes) return;  // texts that were made UTF-8 are longer
  const auto again = decode(once);
  if (!again || smon_rt::agent_messages::encode(*again) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view packet(reinterpret_cast<const char*>(data), size);
  check(packet, smon_rt::agent_messages::decode_trainer_message);
  check(packet, smon_rt::agent_messages::decode_agent_message);
  return 0;
}
