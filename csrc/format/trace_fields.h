#pragma once

#include <protozero/types.hpp>

// The field numbers of proto/smon_rt/v1/trace.proto, for the encoder and the reader. Tests hold them against the schema
// with the official protobuf library.

namespace smon_rt::trace_fields {

enum class Trace : protozero::pbf_tag_type { kPacket = 1 };

enum class Packet : protozero::pbf_tag_type {
  kCrc32 = 1,
  kFirstStep = 2,
  kLastStep = 3,
  kIdentity = 8,
  kSpans = 9,
  kStepTimes = 10,
  kNames = 11,
  kLosses = 12,
  kClockSnapshot = 13,
  kClockMap = 14,
  kRecorderCost = 15,
  kEnd = 16,
  kLeftover = 17,
  kCommOps = 18,
  kCommCounts = 19,
  kCommChannels = 20,
};

enum class Identity : protozero::pbf_tag_type {
  kRunId = 1,
  kAttempt = 2,
  kFileIndex = 3,
  kRank = 4,
  kWorldSize = 5,
  kLocalRank = 6,
  kLayout = 7,
  kHost = 8,
  kBootId = 9,
  kTimeNamespace = 10,
  kPid = 11,
  kGpuUuid = 12,
  kVersions = 13,
  kEnvironment = 14,
  kSampling = 15,
  kHooks = 16,
  kClockSource = 17,
  kMemory = 18,
  kProcessStartTicks = 19,
};

enum class MapEntry : protozero::pbf_tag_type { kKey = 1, kValue = 2 };

enum class Layout : protozero::pbf_tag_type {
  kDpRank = 1,
  kStage = 2,
  kTpRank = 3,
  kCpRank = 4,
  kExpertDpRank = 5,
  kDpSize = 6,
  kPpSize = 7,
  kTpSize = 8,
  kCpSize = 9,
  kVppSize = 10,
  kMicrobatchCount = 11,
  kSchedule = 12,
};

enum class Sampling : protozero::pbf_tag_type {
  kSampleRatio = 1,
  kWarmupSteps = 2,
  kAlwaysSteps = 3,
  kWindowSteps = 4
};

enum class Hook : protozero::pbf_tag_type { kName = 1, kInstalled = 2, kReason = 3 };

enum class SpanBatch : protozero::pbf_tag_type {
  kSpanCount = 1,
  kRingId = 2,
  kFirstIndex = 3,
  kStartNs = 4,
  kDurationNs = 5,
  kDeviceStartNs = 6,
  kDeviceDurationNs = 7,
  kKind = 8,
  kStep = 9,
  kTimeSource = 10,
  kFlags = 11,
  kMicrobatch = 12,
  kChunk = 13,
  kOpIndex = 14,
  kTrackId = 15,
  kNameId = 16,
  kCommId = 17,
  kCommSeq = 18,
  kPeer = 19,
  kPayloadBytes = 20,
  kMetricValue = 21,
  kShape = 22,
};

enum class StepTimes : protozero::pbf_tag_type { kStep = 1, kStartNs = 2, kDurationNs = 3, kSampled = 4, kWarmup = 5 };

enum class Names : protozero::pbf_tag_type { kName = 1, kTrack = 2, kCommunicator = 3 };

enum class Name : protozero::pbf_tag_type { kId = 1, kText = 2 };

enum class Track : protozero::pbf_tag_type { kId = 1, kThreadId = 2, kThreadName = 3, kDevice = 4, kStream = 5 };

enum class Communicator : protozero::pbf_tag_type { kId = 1, kName = 2, kDimension = 3, kMemberRanks = 4 };

enum class Losses : protozero::pbf_tag_type {
  kDroppedByKind = 1,
  kForeignTokens = 2,
  kStaleTokens = 3,
  kThreadsWithoutRing = 4,
  kUnwrittenSpans = 5,
  kOverwrittenSpans = 6,
  kLateRequests = 7,
  kSinkError = 8,
  kUncountedSequences = 9,
  kReclaimedSpans = 10,
  kSaturatedSteps = 11,
  kMisusedCalls = 12,
  kHostOnlySpans = 13,
  kOverwrittenCommOps = 14,
};

enum class ClockSnapshot : protozero::pbf_tag_type { kTicks = 1, kMonotonicNs = 2, kRealtimeNs = 3, kWidthNs = 4 };

enum class ClockMap : protozero::pbf_tag_type {
  kGpuUuid = 1,
  kWindowStartNs = 2,
  kWindowEndNs = 3,
  kOffsetNs = 4,
  kDriftRatio = 5,
  kBoundNs = 6,
  kViolatedBounds = 7,
  kDeviceClock = 8,
  kDevice = 9,
};

enum class RecorderCost : protozero::pbf_tag_type {
  kDrainCpuNs = 1,
  kReporterCpuNs = 2,
  kWatchdogCpuNs = 3,
  kSpanCount = 4,
  kFileBytes = 5,
  kSampledStepMeanNs = 6,
  kUnsampledStepMeanNs = 7,
  kOverheadRatio = 8,
  kOverheadLowRatio = 9,
  kEventQueries = 10,
  kLongestEventLagNs = 11,
};

enum class End : protozero::pbf_tag_type { kReason = 1 };

enum class Leftover : protozero::pbf_tag_type { kMergedByPid = 1, kRealtimeNs = 2, kStep = 3, kPhase = 4 };

enum class CommOps : protozero::pbf_tag_type {
  kFirstNumber = 1,
  kShape = 2,
  kStartNs = 3,
  kEnqueueNs = 4,
  kFirstTransferNs = 5,
  kTransferNs = 6,
  kKernelStartDeviceNs = 7,
  kKernelDurationDeviceNs = 8,
  kSlowestChannel = 9,
  kNumberGap = 10,
  kStep = 11,
  kCommunicator = 12,
  kFunction = 13,
  kDatatype = 14,
  kAlgorithm = 15,
  kProtocol = 16,
  kChannelCount = 17,
  kPeer = 18,
  kPayloadBytes = 19,
  kCommId = 20,
  kCommSeq = 21,
  kLibrarySeq = 22,
  kFlags = 23,
  kTransferCount = 24,
  kOpenTransferCount = 25,
  kKernelCount = 26,
  kOpenKernelCount = 27,
};

enum class CommCounts : protozero::pbf_tag_type {
  kCommunicators = 1,
  kOps = 2,
  kJoinedOps = 3,
  kForeignHandles = 4,
  kStaleHandles = 5,
  kLostEnds = 6,
  kRejectedTimes = 7,
  kUntracked = 8,
};

enum class CommChannels : protozero::pbf_tag_type {
  kCommunicator = 1,
  kNcclComm = 2,
  kCommId = 3,
  kChannel = 4,
  kIsSend = 5,
  kPeer = 6,
  kBegun = 7,
  kMoved = 8,
  kDone = 9,
  kMovedBytes = 10,
  kState = 11,
  kStateNs = 12,
};

}  // namespace smon_rt::trace_fields
