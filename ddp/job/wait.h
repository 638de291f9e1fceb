#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::detail {

/// Waits for `work` (on CUDA: makes the current stream wait).
///
/// A failure becomes one c10::Error that names this rank, what was done and the
/// cause. In a group of the job that is the rank that has left, how, and after
/// how many backward passes, where one has (it waits two seconds to hear of
/// it); a time-out is called one; else it is the backend's first line.
void wait(const c10::intrusive_ptr<c10d::Work>& work,
          const c10d::Backend& group,
          const std::string& what);

/// @throws c10::Error that names `what`, where a group of the job was aborted.
void check_whole(const c10d::Backend& group, const std::string& what);

/// After a failure that need not have come from the backend.
/// @throws c10::Error that names `what` and the rank that has left the job, in
///   a group of the job, where one has (it waits two seconds to hear of it).
void check_nobody_left(const c10d::Backend& group, const std::string& what);

}  // namespace ddp::detail
