#pragma once

#include <concepts>
#include <type_traits>

#include "checkpoint/agent_messages.h"

/// Which field of agent.proto each member is: one list, for writing and for reading. `field` is called with a number
/// and a member, for each.
namespace smon_rt::agent_messages {

template <typename Self, typename Message>
concept Is = std::same_as<std::remove_const_t<Self>, Message>;

/// A field of type fixed64, where others of 64 bits are varints.
template <typename Value>
struct Fixed64 {
  Value& value;
};
template <typename Value>
Fixed64(Value&) -> Fixed64<Value>;

void visit_fields(Is<Label> auto& self, auto&& field) {
  field(1, self.incarnation);
  field(2, self.step);
}

void visit_fields(Is<Hello> auto& self, auto&& field) {
  field(1, self.protocol);
  field(2, self.run_id);
  field(3, self.rank);
  field(4, self.world_size);
  field(5, self.owner);
  field(6, self.topology);
  field(7, self.attempt);
  field(8, self.every);
  field(9, self.own_slots);
  field(10, self.pid);
  field(11, self.disk_dir);
  field(12, self.disk_every);
  field(13, self.disk_keep);
  field(14, self.agent_ttl_s);
}

void visit_fields(Is<Fence> auto& self, auto&& field) {
  field(1, self.incarnation);
}

void visit_fields(Is<List> auto& self, auto&& field) {
  field(1, self.owner);
}

void visit_fields(Is<Pin> auto& self, auto&& field) {
  field(1, self.label);
  field(2, self.kept);
}

void visit_fields(Is<Fetch> auto& self, auto&& field) {
  field(1, self.owner);
  field(2, self.label);
  field(3, self.tier);
}

void visit_fields(Is<GoOn> auto& self, auto&& field) {
  field(1, self.incarnation);
  field(2, self.next_step);
}

void visit_fields(Is<Reserve> auto& self, auto&& field) {
  field(1, self.layout_epoch);
  field(2, self.content_bytes);
}

void visit_fields(Is<Adopt> auto& self, auto&& field) {
  field(1, self.layout_epoch);
  field(2, self.content_bytes);
  field(3, self.slots);
}

void visit_fields(Is<Reject> auto& self, auto&& field) {
  field(1, self.label);
  field(2, self.reason);
}

void visit_fields(Is<StatusRequest> auto&, auto&&) {}

void visit_fields(Is<VerifyRequest> auto&, auto&&) {}

void visit_fields(Is<Bye> auto&, auto&&) {}

void visit_fields(Is<Began> auto& self, auto&& field) {
  field(1, self.label);
  field(2, self.slot);
}

void visit_fields(Is<Copied> auto& self, auto&& field) {
  field(1, self.label);
  field(2, self.slot);
  field(3, self.copy_ns);
  field(4, self.blocked_ns);
}

void visit_fields(Is<Skipped> auto& self, auto&& field) {
  field(1, self.label);
  field(2, self.cause);
  field(3, self.text);
}

void visit_fields(Is<Orphan> auto& self, auto&& field) {
  field(1, self.run_id);
  field(2, self.pid);
  field(3, self.memory_bytes);
  field(4, self.idle_s);
}

void visit_fields(Is<Welcome> auto& self, auto&& field) {
  field(1, self.incarnation);
  field(2, self.pid);
  field(3, self.version);
  field(4, self.is_new);
  field(5, self.orphans);
}

void visit_fields(Is<Done> auto&, auto&&) {}

void visit_fields(Is<HeldCopy> auto& self, auto&& field) {
  field(1, self.owner);
  field(2, self.label);
  field(3, self.tier);
  field(4, self.content_bytes);
  field(5, Fixed64{self.content_hash});
  field(6, self.topology);
  field(7, self.is_intact);
  field(8, self.is_tried);
  field(9, self.reason);
}

void visit_fields(Is<Listing> auto& self, auto&& field) {
  field(1, self.copies);
}

void visit_fields(Is<Fetched> auto& self, auto&& field) {
  field(1, self.content_bytes);
}

void visit_fields(Is<Reserved> auto& self, auto&& field) {
  field(1, self.slots);
}

void visit_fields(Is<Refused> auto& self, auto&& field) {
  field(1, self.reason);
}

void visit_fields(Is<Promise> auto& self, auto&& field) {
  field(1, self.label);
  field(2, self.slot);
  field(3, self.layout_epoch);
}

void visit_fields(Is<Dead> auto& self, auto&& field) {
  field(1, self.label);
  field(2, self.owner);
  field(3, self.cause);
}

void visit_fields(Is<RankStatus> auto& self, auto&& field) {
  field(1, self.owner);
  field(2, self.rank);
  field(3, self.pid);
  field(4, self.is_connected);
  field(5, self.promised);
  field(6, self.captured);
  field(7, self.content_bytes);
  field(8, self.copy_ns);
  field(9, self.blocked_ns);
  field(10, self.captures);
  field(11, self.skips);
  field(12, self.layout_epoch);
}

void visit_fields(Is<Status> auto& self, auto&& field) {
  field(1, self.run_id);
  field(2, self.pid);
  field(3, self.incarnation);
  field(4, self.ranks);
  field(5, self.memory_bytes);
  field(6, self.memory_budget_bytes);
  field(7, self.agreed);
  field(8, self.durable);
  field(9, self.disk_error);
  field(10, self.skipped_steps);
  field(11, self.last_skip);
  field(12, self.hashed_bytes);
  field(13, self.hash_ns);
  field(14, self.written_bytes);
  field(15, self.write_ns);
  field(16, self.is_fenced);
}

}  // namespace smon_rt::agent_messages
