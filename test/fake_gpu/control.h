#pragma once

#include <dlfcn.h>

#include <cstdint>

/// What a test may ask of the stand-in for the GPU, and tell it.
///
/// A header alone, which finds the stand-in at run time: a program that uses it
/// also runs on a real GPU, where active() is false, the counts are zero and
/// the other calls do nothing.
namespace fake_gpu {

/// What the process asked of CUDA and NCCL.
struct Counts {
  // The host waited for the device.
  uint64_t device_synchronizes = 0;
  uint64_t stream_synchronizes = 0;
  uint64_t event_synchronizes = 0;
  uint64_t blocking_copies = 0;  // counted as copies, too

  uint64_t event_records = 0;
  uint64_t event_queries = 0;
  uint64_t event_waits = 0;  // a stream was told to wait for an event

  uint64_t kernels = 0;    // launches
  uint64_t operators = 0;  // LibTorch's CPU code in place of its kernels

  uint64_t copies_to_device = 0;
  uint64_t copies_to_host = 0;
  uint64_t copies_on_device = 0;  // and from device to device
  uint64_t copies_on_host = 0;
  uint64_t memsets = 0;

  uint64_t allocations = 0;  // cudaMalloc, not each tensor
  uint64_t frees = 0;
  uint64_t pinned_allocations = 0;

  uint64_t all_reduces = 0;
  uint64_t broadcasts = 0;
  uint64_t reduces = 0;
  uint64_t all_gathers = 0;
  uint64_t reduce_scatters = 0;
  uint64_t all_to_alls = 0;
  uint64_t sends = 0;
  uint64_t receives = 0;
  uint64_t aborted_collectives = 0;  // unfinished when they were aborted

  uint64_t host_synchronizes() const {
    return device_synchronizes + stream_synchronizes + event_synchronizes +
           blocking_copies;
  }
  uint64_t nccl_calls() const {
    return all_reduces + broadcasts + reduces + all_gathers + reduce_scatters +
           all_to_alls + sends + receives;
  }
};

/// When what was queued runs.
enum class Mode {
  eager,    // at once, the streams in random order
  lazy,     // when something waits for it, and only what that needs
  mixed,    // as lazy, and now and then an operation nobody asked for
  priority  // while something waits, the runnable stream of highest priority;
            // priorities are random and change
};

namespace detail {
template <typename Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}
}  // namespace detail

/// Whether the program runs over the stand-in.
inline bool active() {
  return ::dlsym(RTLD_DEFAULT, "fake_gpu_counts") != nullptr;
}

/// Of this process, since its start or the last reset_counts().
inline Counts counts() {
  Counts result;
  if (const auto read = detail::find<void(Counts*)>("fake_gpu_counts")) {
    read(&result);
  }
  return result;
}

inline void reset_counts() {
  if (const auto reset = detail::find<void()>("fake_gpu_reset_counts")) {
    reset();
  }
}

/// Takes another mode and seed than the environment's, from now on.
inline void schedule(Mode mode, uint64_t seed) {
  using Schedule = void(int, uint64_t);
  if (const auto set = detail::find<Schedule>("fake_gpu_schedule")) {
    set(static_cast<int>(mode), seed);
  }
}

/// The `n`th cudaStreamWaitEvent from now on does nothing, of the streams of
/// each device, as each rank has one; 0: all work. Forgets what was lost
/// before.
inline void lose_wait(uint64_t n) {
  if (const auto lose = detail::find<void(uint64_t)>("fake_gpu_lose_wait")) {
    lose(n);
  }
}

/// What became of a wait that was lost.
enum class LostWait {
  none,     // none was lost
  reached,  // the event had happened already: nothing was lost
  covered,  // before anything else, the stream was told to wait for the same
            // event or a later one of the same stream: nothing was lost
  missing   // nothing took its place
};

/// Of the wait that lose_wait() lost on a device.
inline LostWait lost_wait(int device) {
  const auto read = detail::find<int(int)>("fake_gpu_lost_wait");
  return read == nullptr ? LostWait::none : static_cast<LostWait>(read(device));
}

}  // namespace fake_gpu
