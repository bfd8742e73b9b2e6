// What driver_types.h and driver_symbols.inc say, held against the toolkit's own headers. Built only where they are.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

#include "cuda/driver_types.h"

namespace smon_rt::cuda {
namespace {

/// Types that are passed the same way: pointers as pointers, numbers and enumerators of one size and kind.
template <typename Ours, typename Theirs>
constexpr bool is_same_kind() {
  if (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  const auto is_whole = [](auto is_integral, auto is_enum) { return is_integral.value || is_enum.value; };
  return sizeof(Ours) == sizeof(Theirs) && is_whole(std::is_integral<Ours>{}, std::is_enum<Ours>{}) &&
         is_whole(std::is_integral<Theirs>{}, std::is_enum<Theirs>{});
}

template <typename Ours, typename Theirs>
struct IsSameCall : std::false_type {};
template <typename Ours, typename... OurArguments, typename Theirs, typename... TheirArguments>
  requires(sizeof...(OurArguments) == sizeof...(TheirArguments))
struct IsSameCall<Ours (*)(OurArguments...), Theirs (*)(TheirArguments...)>
    : std::bool_constant<is_same_kind<Ours, Theirs>() && (is_same_kind<OurArguments, TheirArguments>() && ...)> {};

template <typename Ours, typename Theirs>
constexpr bool is_same_number(Ours ours, Theirs theirs) {
  return static_cast<long long>(ours) == static_cast<long long>(theirs);
}

static_assert(sizeof(Status) == sizeof(CUresult) && sizeof(Device) == sizeof(CUdevice));
static_assert(sizeof(Handle) == sizeof(CUcontext) && sizeof(Handle) == sizeof(CUstream));
static_assert(sizeof(Handle) == sizeof(CUevent));
static_assert(sizeof(Uuid) == sizeof(CUuuid) && sizeof(Uuid::bytes) == sizeof(CUuuid::bytes));

static_assert(is_same_number(Status::kSuccess, CUDA_SUCCESS));
static_assert(is_same_number(Status::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(is_same_number(Status::kDeinitialized, CUDA_ERROR_DEINITIALIZED));
static_assert(is_same_number(Status::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT));
static_assert(is_same_number(Status::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE));
static_assert(is_same_number(Status::kNotFound, CUDA_ERROR_NOT_FOUND));
static_assert(is_same_number(Status::kNotReady, CUDA_ERROR_NOT_READY));
static_assert(is_same_number(Status::kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(is_same_number(Status::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));

static_assert(is_same_number(StreamCaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE));
static_assert(is_same_number(StreamCaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(is_same_number(StreamCaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED));
static_assert(is_same_number(StreamCaptureMode::kGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL));
static_assert(is_same_number(StreamCaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
static_assert(is_same_number(StreamCaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(is_same_number(kEventDefault, CU_EVENT_DEFAULT));
static_assert(is_same_number(kEventDisableTiming, CU_EVENT_DISABLE_TIMING));
static_assert(is_same_number(kStreamNonBlocking, CU_STREAM_NON_BLOCKING));
static_assert(is_same_number(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE));
static_assert(sizeof(DevicePointer) == sizeof(CUdeviceptr));
static_assert(is_same_number(kProcAddressLegacyStream, CU_GET_PROC_ADDRESS_LEGACY_STREAM));

// The versions in the names are those of driver_symbols.inc.
static_assert(IsSameCall<GetProcAddress11030, PFN_cuGetProcAddress_v11030>{});
static_assert(IsSameCall<GetProcAddress12000, PFN_cuGetProcAddress_v12000>{});
static_assert(IsSameCall<DriverGetVersion, PFN_cuDriverGetVersion_v2020>{});
static_assert(IsSameCall<CtxGetCurrent, PFN_cuCtxGetCurrent_v4000>{});
static_assert(IsSameCall<CtxGetDevice, PFN_cuCtxGetDevice_v2000>{});
static_assert(IsSameCall<CtxPushCurrent, PFN_cuCtxPushCurrent_v4000>{});
static_assert(IsSameCall<CtxPopCurrent, PFN_cuCtxPopCurrent_v4000>{});
static_assert(IsSameCall<StreamIsCapturing, PFN_cuStreamIsCapturing_v10000>{});
static_assert(IsSameCall<ThreadExchangeStreamCaptureMode, PFN_cuThreadExchangeStreamCaptureMode_v10010>{});
static_assert(IsSameCall<EventCreate, PFN_cuEventCreate_v2000>{});
static_assert(IsSameCall<EventDestroy, PFN_cuEventDestroy_v4000>{});
static_assert(IsSameCall<EventRecord, PFN_cuEventRecord_v2000>{});
static_assert(IsSameCall<EventQuery, PFN_cuEventQuery_v2000>{});
static_assert(IsSameCall<EventElapsedTime, PFN_cuEventElapsedTime_v2000>{});
static_assert(IsSameCall<DeviceGetUuid, PFN_cuDeviceGetUuid_v9020>{});
static_assert(IsSameCall<DeviceGetUuid, PFN_cuDeviceGetUuid_v11040>{});
static_assert(IsSameCall<StreamCreate, PFN_cuStreamCreate_v2000>{});
static_assert(IsSameCall<StreamDestroy, PFN_cuStreamDestroy_v4000>{});
static_assert(IsSameCall<StreamWaitEvent, PFN_cuStreamWaitEvent_v3020>{});
static_assert(IsSameCall<MemAlloc, PFN_cuMemAlloc_v3020>{});
static_assert(IsSameCall<MemFree, PFN_cuMemFree_v3020>{});
static_assert(IsSameCall<MemHostRegister, PFN_cuMemHostRegister_v6050>{});
static_assert(IsSameCall<MemHostUnregister, PFN_cuMemHostUnregister_v4000>{});
static_assert(IsSameCall<MemcpyDtoHAsync, PFN_cuMemcpyDtoHAsync_v3020>{});
static_assert(IsSameCall<MemcpyDtoDAsync, PFN_cuMemcpyDtoDAsync_v3020>{});
#if CUDA_VERSION >= 12080
static_assert(IsSameCall<EventElapsedTime, PFN_cuEventElapsedTime_v12080>{});
#endif

}  // namespace
}  // namespace smon_rt::cuda
