#include "cuda/nccl_words.h"

#include <cstddef>
#include <cstring>

namespace smon_rt::nccl {

namespace {

template <typename Value>
struct Word {
  const char* text;
  Value value;
};

template <typename Value, std::size_t kSize>
Value find(const Word<Value> (&words)[kSize], const char* text) noexcept {
  if (text == nullptr) return Value::kUnknown;
  for (const Word<Value>& word : words) {
    if (std::strcmp(word.text, text) == 0) return word.value;
  }
  return Value::kUnknown;
}

// The frequent ones first.
constexpr Word<CommFunction> kFunctions[] = {
    {"AllReduce", CommFunction::kAllReduce}, {"ReduceScatter", CommFunction::kReduceScatter},
    {"AllGather", CommFunction::kAllGather}, {"Send", CommFunction::kSend},
    {"Recv", CommFunction::kRecv},           {"Broadcast", CommFunction::kBroadcast},
    {"Reduce", CommFunction::kReduce},       {"AlltoAll", CommFunction::kAllToAll},
    {"AllToAll", CommFunction::kAllToAll},   {"Gather", CommFunction::kGather},
    {"Scatter", CommFunction::kScatter},
};

constexpr Word<CommDatatype> kDatatypes[] = {
    {"ncclBfloat16", CommDatatype::kBfloat16},
    {"ncclFloat32", CommDatatype::kFloat32},
    {"ncclFloat16", CommDatatype::kFloat16},
    {"ncclUint8", CommDatatype::kUint8},
    {"ncclInt8", CommDatatype::kInt8},
    {"ncclInt64", CommDatatype::kInt64},
    {"ncclInt32", CommDatatype::kInt32},
    {"ncclUint32", CommDatatype::kUint32},
    {"ncclUint64", CommDatatype::kUint64},
    {"ncclFloat64", CommDatatype::kFloat64},
    {"ncclFloat8e4m3", CommDatatype::kFloat8E4m3},
    {"ncclFloat8e5m2", CommDatatype::kFloat8E5m2},
};

constexpr Word<CommAlgorithm> kAlgorithms[] = {
    {"RING", CommAlgorithm::kRing},
    {"TREE", CommAlgorithm::kTree},
    {"NVLS", CommAlgorithm::kNvls},
    {"NVLS_TREE", CommAlgorithm::kNvlsTree},
    {"PAT", CommAlgorithm::kPat},
    {"COLLNET_DIRECT", CommAlgorithm::kCollnetDirect},
    {"COLLNET_CHAIN", CommAlgorithm::kCollnetChain},
};

constexpr Word<CommProtocol> kProtocols[] = {
    {"SIMPLE", CommProtocol::kSimple}, {"LL128", CommProtocol::kLl128}, {"LL", CommProtocol::kLl}};

}  // namespace

CommFunction function_of(const char* word) noexcept {
  return find(kFunctions, word);
}

CommDatatype datatype_of(const char* word) noexcept {
  return find(kDatatypes, word);
}

CommAlgorithm algorithm_of(const char* word) noexcept {
  return find(kAlgorithms, word);
}

CommProtocol protocol_of(const char* word) noexcept {
  return find(kProtocols, word);
}

}  // namespace smon_rt::nccl
