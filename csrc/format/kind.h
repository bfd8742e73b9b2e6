#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace smon_rt {

/// What a span is. The number of a kind is written to files: never renumber, add at the end.
enum class Kind : std::uint8_t {
  kStep,
  kForwardCompute,
  kBackwardCompute,
  kForwardBackwardCombined,
  kForwardSend,
  kForwardRecv,
  kBackwardSend,
  kBackwardRecv,
  kParamsAllGather,
  kGradsReduceScatter,
  kGradsAllReduce,
  kLayernormGradsAllReduce,
  kEmbeddingGradsAllReduce,
  kSeparateGradsAllReduce,
  kCollective,
  kOptimizerClipMainGrad,
  kOptimizer,
  kDataLoading,
  kGc,
  kCheckpointSnapshot,
  kCheckpointWait,
  kEval,
  kStartup,
  kMetric,
  kUser,
};

/// The one spelling of each kind, indexed by its number.
inline constexpr std::array<std::string_view, 25> kKindNames = {
    "step",
    "forward_compute",
    "backward_compute",
    "forward_backward_combined",
    "forward_send",
    "forward_recv",
    "backward_send",
    "backward_recv",
    "params_all_gather",
    "grads_reduce_scatter",
    "grads_all_reduce",
    "layernorm_grads_all_reduce",
    "embedding_grads_all_reduce",
    "separate_grads_all_reduce",
    "collective",
    "optimizer_clip_main_grad",
    "optimizer",
    "data_loading",
    "gc",
    "checkpoint_snapshot",
    "checkpoint_wait",
    "eval",
    "startup",
    "metric",
    "user",
};

inline constexpr std::size_t kKindCount = kKindNames.size();
static_assert(static_cast<std::size_t>(Kind::kUser) + 1 == kKindCount);

constexpr std::string_view kind_name(Kind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

}  // namespace smon_rt
