#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

/// What trainers, tools and an agent say to each other: the messages of proto/smon_rt/v1/agent.proto, with its names
/// and meanings.
namespace agent_messages {

inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::size_t kMaxPacketBytes = std::size_t{64} << 10;
/// Descriptors beside one packet: an answer to reserve, or adopt.
inline constexpr std::size_t kMaxDescriptors = 8;

enum class Tier : std::uint8_t { kUnknown = 0, kMemory = 1, kDisk = 2 };

enum class SkipCause : std::uint8_t {
  kUnknown = 0,
  kNoPromise = 1,
  kCancelled = 2,
  kLayout = 3,
  kFailed = 4,
  kDead = 5
};

// ---- trainer, or tool, to agent

struct Hello {
  std::uint32_t protocol = 0;
  std::string run_id;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::string owner;
  std::string topology;
  std::string attempt;
  std::uint32_t every = 0;
  std::uint32_t own_slots = 0;
  std::int32_t pid = 0;
  std::string disk_dir;
  std::uint32_t disk_every = 0;
  std::uint32_t disk_keep = 0;
  std::uint32_t agent_ttl_s = 0;
};

struct Fence {
  std::uint32_t incarnation = 0;
};

struct List {
  std::string owner;
};

struct Pin {
  Label label;
  std::vector<Label> kept;
};

struct Fetch {
  std::string owner;
  Label label;
  Tier tier = Tier::kUnknown;
};

struct GoOn {
  std::uint32_t incarnation = 0;
  std::uint64_t next_step = 0;
};

struct Reserve {
  std::uint32_t layout_epoch = 0;
  std::uint64_t content_bytes = 0;
};

struct Adopt {
  std::uint32_t layout_epoch = 0;
  std::uint64_t content_bytes = 0;
  std::vector<std::uint32_t> slots;
};

struct Reject {
  Label label;
  std::string reason;
};

struct StatusRequest {};
struct VerifyRequest {};
struct Bye {};

struct Began {
  Label label;
  std::uint32_t slot = 0;
};

struct Copied {
  Label label;
  std::uint32_t slot = 0;
  std::uint64_t copy_ns = 0;
  std::uint64_t blocked_ns = 0;
};

struct Skipped {
  Label label;
  SkipCause cause = SkipCause::kUnknown;
  std::string text;
};

using TrainerMessage = std::variant<Hello, Fence, List, Pin, Fetch, GoOn, Reserve, Adopt, Reject, StatusRequest,
                                    VerifyRequest, Bye, Began, Copied, Skipped>;

// ---- agent to trainer, or tool

struct Orphan {
  std::string run_id;
  std::int32_t pid = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t idle_s = 0;
};

struct Welcome {
  std::uint32_t incarnation = 0;
  std::int32_t pid = 0;
  std::string version;
  bool is_new = false;
  std::vector<Orphan> orphans;
};

struct Done {};

struct HeldCopy {
  std::string owner;
  Label label;
  Tier tier = Tier::kUnknown;
  std::uint64_t content_bytes = 0;
  std::uint64_t content_hash = 0;
  std::string topology;
  bool is_intact = false;
  bool is_tried = false;
  std::string reason;
};

struct Listing {
  std::vector<HeldCopy> copies;
};

struct Fetched {
  std::uint64_t content_bytes = 0;
};

struct Reserved {
  std::vector<std::uint32_t> slots;
};

struct Refused {
  std::string reason;
};

struct Promise {
  Label label;
  std::uint32_t slot = 0;
  std::uint32_t layout_epoch = 0;
};

struct Dead {
  Label label;
  std::string owner;
  SkipCause cause = SkipCause::kUnknown;
};

struct RankStatus {
  std::string owner;
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  bool is_connected = false;
  std::optional<Label> promised;
  std::optional<Label> captured;
  std::uint64_t content_bytes = 0;
  std::uint64_t copy_ns = 0;
  std::uint64_t blocked_ns = 0;
  std::uint64_t captures = 0;
  std::uint64_t skips = 0;
  std::uint32_t layout_epoch = 0;
};

struct Status {
  std::string run_id;
  std::int32_t pid = 0;
  std::uint32_t incarnation = 0;
  std::vector<RankStatus> ranks;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_budget_bytes = 0;
  std::optional<Label> agreed;
  std::optional<Label> durable;
  std::string disk_error;
  std::uint64_t skipped_steps = 0;
  std::optional<Dead> last_skip;
  std::uint64_t hashed_bytes = 0;
  std::uint64_t hash_ns = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t write_ns = 0;
  bool is_fenced = false;
};

using AgentMessage = std::variant<Welcome, Done, Listing, Fetched, Reserved, Status, Refused, Promise, Dead>;

/// One packet. May be longer than kMaxPacketBytes (a long listing): the sender looks. Texts that are not UTF-8 are made
/// so, since protobuf libraries refuse a message for one.
std::string encode(const TrainerMessage& message);
std::string encode(const AgentMessage& message);

/// Any bytes: a message, or one line of why not. Numbers of an enumeration that are not known here become kUnknown;
/// texts are as they came. The message's memory is bounded by the packet's.
Result<TrainerMessage> decode_trainer_message(std::string_view packet);
Result<AgentMessage> decode_agent_message(std::string_view packet);

}  // namespace agent_messages
}  // namespace smon_rt
