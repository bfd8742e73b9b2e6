#pragma once

#include <cstddef>
#include <cstdint>

// What of the CUDA driver's binary interface is used here, declared by hand: a user with a GPU and without a toolkit
// has everything. header_checks.cc holds it against the real headers where a build finds them.

namespace smon_rt::cuda {

/// Contexts, streams and events are pointers to what only the driver knows.
using Handle = void*;
using Device = int;
/// An address in a GPU's memory.
using DevicePointer = std::uint64_t;

/// What every call returns. Others than these are failures like any other.
enum class Status : int {
  kSuccess = 0,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureImplicit = 906,
};

enum class StreamCaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

/// What a thread may do while another one captures: anything, only if it is relaxed.
enum class StreamCaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

/// Of an event. Without a flag it has a time, and whoever waits for it spins.
inline constexpr unsigned int kEventDefault = 0;
inline constexpr unsigned int kEventDisableTiming = 2;

/// Of a stream that neither waits for the default stream nor that one for it.
inline constexpr unsigned int kStreamNonBlocking = 1;

/// Of host memory that all contexts know to be page-locked.
inline constexpr unsigned int kHostRegisterPortable = 1;

/// A stream of 0 is then the default stream that all threads share.
inline constexpr std::uint64_t kProcAddressLegacyStream = 1;

/// Of a device; from CUDA 11.4 on of the part of it that this process has.
struct Uuid {
  unsigned char bytes[16];
};

using GetProcAddress11030 = Status (*)(const char* symbol, void** function, int version, std::uint64_t flags);
using GetProcAddress12000 = Status (*)(const char* symbol, void** function, int version, std::uint64_t flags,
                                       int* symbol_status);
using DriverGetVersion = Status (*)(int* version);
using DeviceGetUuid = Status (*)(Uuid* uuid, Device device);
using CtxGetCurrent = Status (*)(Handle* context);
using CtxGetDevice = Status (*)(Device* device);
using CtxPushCurrent = Status (*)(Handle context);
using CtxPopCurrent = Status (*)(Handle* context);
using StreamIsCapturing = Status (*)(Handle stream, StreamCaptureStatus* status);
using ThreadExchangeStreamCaptureMode = Status (*)(StreamCaptureMode* mode);
using EventCreate = Status (*)(Handle* event, unsigned int flags);
using EventDestroy = Status (*)(Handle event);
using EventRecord = Status (*)(Handle event, Handle stream);
using EventQuery = Status (*)(Handle event);
using EventElapsedTime = Status (*)(float* milliseconds, Handle start, Handle end);
using StreamCreate = Status (*)(Handle* stream, unsigned int flags);
using StreamDestroy = Status (*)(Handle stream);
using StreamWaitEvent = Status (*)(Handle stream, Handle event, unsigned int flags);
using MemAlloc = Status (*)(DevicePointer* address, std::size_t bytes);
using MemFree = Status (*)(DevicePointer address);
using MemHostRegister = Status (*)(void* address, std::size_t bytes, unsigned int flags);
using MemHostUnregister = Status (*)(void* address);
using MemcpyDtoHAsync = Status (*)(void* host, DevicePointer device, std::size_t bytes, Handle stream);
using MemcpyDtoDAsync = Status (*)(DevicePointer to, DevicePointer from, std::size_t bytes, Handle stream);

}  // namespace smon_rt::cuda
