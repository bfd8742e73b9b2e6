#pragma once

#include <cstddef>
#include <cstdint>

// How a test steers fake_libcuda.so, beside the driver's own functions that it has. Tests look these up by name; a
// child process, which nobody can reach into, is steered by FAKE_CUDA_CONTEXT=1: its threads have a context from the
// start, device time is the host's monotonic clock, every event is ready at once unless the process launches something
// (fake_cuda_launch), and a call that comes after the driver's exit handler aborts the process. FAKE_CUDA_OFFSET_NS and
// FAKE_CUDA_DRIFT_PPM set the device's clock apart from the host's.

extern "C" {

/// As if just loaded: CUDA 13.0, nothing missing, no context, device time 0 and nothing finished.
void fake_cuda_reset();
/// Functions of later releases than this one are not there.
void fake_cuda_set_version(int version);
/// As if this function were in no release. Null: all are there.
void fake_cuda_set_missing(const char* symbol);

/// A new context of a device.
void* fake_cuda_make_context(int device);
/// The calling thread's current context from here on; null: none.
void fake_cuda_set_current(void* context);
/// Its events and streams fail from here on.
void fake_cuda_lose_context(void* context);

/// Calls of this function give this status instead of doing anything. 0: as usual.
void fake_cuda_fail(const char* symbol, int status);
/// How often the function was called since the last reset.
int fake_cuda_calls(const char* symbol);

/// Events are recorded at this device time, and ready once as much is finished.
void fake_cuda_set_time(std::int64_t time_ns);
void fake_cuda_finish(std::int64_t time_ns);

/// Once the driver was asked for a stream: all streams do all that they can; one stands still until it is let go; the
/// GPU's clock, which stands still otherwise, goes on. How much memory is page-locked.
void fake_cuda_run();
void fake_cuda_hold(void* stream);
void fake_cuda_let_go(void* stream);
void fake_cuda_pass_stream_time(std::int64_t duration_ns);
std::size_t fake_cuda_registered_bytes();

/// For a process with a context from the start. Streams do one thing after the other: take so long; say, in a slot that
/// processes share (0 before), when `delay_ns` after here is; wait for that time. The last returns once the time of a
/// slot that this stream fills has come, without a slot once all is done.
void fake_cuda_launch(void* stream, std::int64_t duration_ns);
void fake_cuda_signal(void* stream, std::int64_t* slot, std::int64_t delay_ns);
void fake_cuda_wait(void* stream, std::int64_t* slot);
void fake_cuda_synchronize(void* stream, const std::int64_t* slot);

/// A capture, in the mode in which other threads must be relaxed to ask for events; 1 in the second answers whether
/// somebody broke it.
void fake_cuda_capture(void* stream, int is_capturing);
int fake_cuda_is_capture_broken();

/// What torch says is the current stream of every device, and whether it gives an error instead.
void fake_torch_set_stream(void* stream, int error);
}
