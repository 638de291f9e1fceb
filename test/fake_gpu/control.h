#pragma once

#include <dlfcn.h>

#include <cstdint>

/// Interface of tests to the stand-in for the GPU.
///
/// Header-only: finds the stand-in at run time. A program that uses the header
/// also runs on a real GPU. There active() returns false, all counts are zero
/// and the other calls do nothing.
namespace fake_gpu {

/// Numbers of the process's calls of CUDA and NCCL.
struct Counts {
  // Waits of the host for the device.
  uint64_t device_synchronizes = 0;
  uint64_t stream_synchronizes = 0;
  uint64_t event_synchronizes = 0;
  uint64_t blocking_copies = 0;  // also counted as copies

  uint64_t event_records = 0;
  uint64_t event_queries = 0;  // by threads that record events
  uint64_t event_waits = 0;    // waits of a stream for an event

  uint64_t kernels = 0;    // launches, also of kernels that a graph records
  uint64_t operators = 0;  // operators that ran LibTorch's CPU code

  uint64_t graph_launches = 0;

  uint64_t copies_to_device = 0;
  uint64_t copies_to_host = 0;
  uint64_t copies_on_device = 0;  // including copies between devices
  uint64_t copies_on_host = 0;
  uint64_t memsets = 0;

  uint64_t allocations = 0;  // calls of cudaMalloc, not tensors
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
  // Unfinished collectives of aborted communicators.
  uint64_t aborted_collectives = 0;

  uint64_t host_synchronizes() const {
    return device_synchronizes + stream_synchronizes + event_synchronizes +
           blocking_copies;
  }
  uint64_t copies() const {
    return copies_to_device + copies_to_host + copies_on_device +
           copies_on_host + memsets;
  }
  /// Calls of CUDA, where an operator counts as one. Without the calls for
  /// events that the host creates.
  uint64_t cuda_calls() const {
    return device_synchronizes + stream_synchronizes + event_synchronizes +
           event_records + event_queries + event_waits + kernels + operators +
           graph_launches + copies() + allocations + frees + pinned_allocations;
  }
  uint64_t nccl_calls() const {
    return all_reduces + broadcasts + reduces + all_gathers + reduce_scatters +
           all_to_alls + sends + receives;
  }
};

/// Time at which queued operations run.
enum class Mode {
  eager,  // immediately, the streams in random order
  lazy,   // only operations needed by a wait, when the wait occurs
  mixed,  // as lazy, and sometimes an operation that no wait needs
  // During a wait, the runnable stream of highest priority; random priorities.
  priority
};

namespace detail {
template <typename Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}
}  // namespace detail

/// Returns true if the program runs over the stand-in.
inline bool active() {
  return ::dlsym(RTLD_DEFAULT, "fake_gpu_counts") != nullptr;
}

/// Returns the counts of this process since its start or the last
/// reset_counts().
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

/// Replaces the mode and seed of the environment from now on.
inline void schedule(Mode mode, uint64_t seed) {
  using Schedule = void(int, uint64_t);
  if (const auto set = detail::find<Schedule>("fake_gpu_schedule")) {
    set(static_cast<int>(mode), seed);
  }
}

/// Makes the `n`th cudaStreamWaitEvent from now on do nothing, counted
/// separately for each device, because each rank has one. 0: loses no wait.
/// Clears the record of lost waits.
inline void lose_wait(uint64_t n) {
  if (const auto lose = detail::find<void(uint64_t)>("fake_gpu_lose_wait")) {
    lose(n);
  }
}

/// Effect of a lost wait.
enum class LostWait {
  none,     // no wait was lost
  reached,  // the event had already happened: no effect
  // A wait for the same or a later event of that stream came next: no effect.
  covered,
  missing  // no other wait replaced the lost one
};

/// Returns the effect of the wait that lose_wait() lost on a device.
inline LostWait lost_wait(int device) {
  const auto read = detail::find<int(int)>("fake_gpu_lost_wait");
  return read == nullptr ? LostWait::none : static_cast<LostWait>(read(device));
}

}  // namespace fake_gpu
