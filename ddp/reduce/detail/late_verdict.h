#pragma once

#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/detail/verdict.h"

namespace ddp::detail {

class PeerState;

/// A verdict that is not forgotten where it comes late, as on a GPU: what it
/// says of the last passes is asked for by `ddp::destroy_process_group()` at
/// the latest, also when the model has gone by then.
///
/// Thread contract: one thread at a time, of which that is one.
class LateVerdict {
 public:
  /// @param group  of the job, for the last; another one has no end.
  /// @param elements  as for `Verdict`.
  LateVerdict(const c10d::Backend& group, const at::TensorOptions& elements);
  ~LateVerdict();
  LateVerdict(const LateVerdict&) = delete;
  LateVerdict& operator=(const LateVerdict&) = delete;

  Verdict& operator*() { return state_->verdict; }
  Verdict* operator->() { return &state_->verdict; }

  /// What is wrong with the passes that are known by now, in one line that
  /// names a rank that has left because of it (it waits two seconds to hear of
  /// one); "" for nothing. Says it once.
  std::string error();

  /// The program knows: nothing more is said.
  void mark_told() { state_->is_told = true; }

 private:
  struct State {
    Verdict verdict;
    bool is_told = false;
  };

  std::shared_ptr<State> state_;
  std::shared_ptr<PeerState> record_;  // null without a job
  size_t check_ = 0;
};

}  // namespace ddp::detail
