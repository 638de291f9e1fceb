#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/detail/action_list.h"

namespace ddp::detail {

class MonitoredBackend;

/// Records, in its scope, that this thread waits for a collective of `group`:
/// for ddprun's report of a hang and, in a group of the job, for the search for
/// waits that never end.
class GroupWaitScope {
 public:
  /// @param operation  must outlive the scope.
  /// @param work  of the collective; null: the last one that has started.
  GroupWaitScope(const c10d::Backend& group,
                 const std::string& operation,
                 const c10d::Work* work = nullptr);
  ~GroupWaitScope();
  GroupWaitScope(const GroupWaitScope&) = delete;
  GroupWaitScope& operator=(const GroupWaitScope&) = delete;

 private:
  const RankWaitScope waits_;
  MonitoredBackend* const group_;
};

/// Functions to call before a thread waits for a collective or leaves the job.
ActionList& wait_actions();

/// Waits for `work` (on CUDA: makes the current stream wait).
///
/// @throws c10::Error that names this rank, the operation and the cause. In a
///   group of the job, the cause is a wait that never ends, with the calls of
///   all ranks, or the departed rank, how it left and after how many backward
///   passes, if a report arrives within two seconds. A time-out is reported as
///   a time-out. Otherwise the cause is the first line of the backend's error.
void wait(const c10::intrusive_ptr<c10d::Work>& work,
          const c10d::Backend& group,
          const std::string& operation);

/// Throws the error of `wait` for a collective that has failed outside of
/// `wait`.
/// @param why  the backend's error.
[[noreturn]] void fail_collective(const c10d::Backend& group,
                                  const std::string& operation,
                                  const std::string& why);

/// @throws c10::Error that names `operation` if a group of the job was aborted.
void check_not_aborted(const c10d::Backend& group,
                       const std::string& operation);

/// Returns the result of a collective on `target`. A copy from a GPU to the
/// host waits for the ranks, and the abort of a group ends this wait without an
/// error.
/// @throws c10::Error that names `operation` if a group of the job was aborted.
at::Tensor copy_result(const at::Tensor& result,
                       c10::Device target,
                       const c10d::Backend& group,
                       const std::string& operation);

/// Checks for departures after a failure that may not come from the backend.
/// @throws c10::Error that names `operation` and the departed rank if a member
/// of a
///   group of the job has left. Waits up to two seconds for the report.
void check_nobody_left(const c10d::Backend& group,
                       const std::string& operation);

}  // namespace ddp::detail
