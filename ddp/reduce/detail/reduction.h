#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/reduce/detail/exchange_claim.h"
#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/graph_record.h"
#include "ddp/reduce/detail/pass_agreement.h"
#include "ddp/reduce/detail/step_detector.h"
#include "ddp/reduce/detail/unreached.h"
#include "ddp/reduce/options.h"

namespace ddp::detail {

/// What happens in a backward pass that is reduced; `ReducerImpl` says when:
/// `begin`, `add` for each gradient, `end`, `hand_out` where all went well, and
/// `reset` in any case.
///
/// Until the ranks have agreed on a plan, a pass only records: gradients go
/// into their buckets, their order is noted, and at the end rank 0 plans, and
/// all buckets start and finish. In every later pass a full bucket starts, and
/// the end starts the rest.
///
/// One call at a time, without grad mode; the same calls on all ranks.
class Reduction {
 public:
  Reduction(std::vector<NamedParameter> parameters,
            c10::intrusive_ptr<c10d::Backend> group,
            const DistributedDataParallelOptions& options);
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  /// The parameters, by their index.
  std::vector<NamedParameter> parameters() const;
  std::vector<at::Tensor> tensors() const { return memory_.tensors(); }
  const BucketPlan& plan() const { return memory_.plan(); }
  /// See `PassAgreement`.
  std::string late_error() { return agreement_.late_error(); }

  const at::Tensor& parameter(size_t index) const {
    return memory_.parameter(index).tensor;
  }

  /// A gradient that stays local.
  void note_local(size_t index) { memory_.note_accumulated(index); }
  /// Those of another reduction of the same parameters.
  void note_local_of(const Reduction& other);
  /// What left this pass, one line: the other ranks hear of it in its end, or,
  /// when that is over, in that of the next.
  void note_failure(std::string text) { status_.failure = std::move(text); }

  /// @param ranks  over how many gradients are averaged.
  void begin(int ranks);
  /// Of a pass in which this rank has no gradients, which `add` does not know.
  void begin_shadow(int ranks);
  void add(size_t index);

  /// Whether buckets are to start without what a pass does not reach.
  bool looks_ahead() const { return unreached_ != nullptr; }
  /// The pass does not reach these, where it `looks_ahead`.
  void look_ahead(const std::vector<size_t>& unreached);

  /// Does everything that other ranks wait for, also after one failure.
  /// @param action  done between the buckets and the agreement; may be empty.
  /// @throws what has failed first, when more has.
  PassOutcome end(const std::function<void()>& action);

  /// @param kept  what keeps its `.grad`, beside what is frozen.
  void hand_out(std::vector<size_t> kept);
  /// `add` or `end` has thrown; no pass follows.
  void abandon() noexcept;
  void reset();

  /// The ranks' steps are compared from here on.
  void forget_steps() { steps_ = StepDetector(compared()); }

 private:
  /// Parameters that change alike on ranks that step alike.
  std::vector<at::Tensor> compared() const {
    return exchange_->is_replica_consistent(group_->getSize())
               ? tensors()
               : std::vector<at::Tensor>();
  }
  void open(int ranks);
  bool comes_too_late(size_t index);
  void take(size_t index);
  void add_frozen();
  void add_unused();
  void learn_graph();
  void compare_graph();
  bool fill_with_unreached(size_t bucket);
  void leave_out(size_t index);
  void add_missing();
  void agree_on_plan();
  void start_full_buckets(size_t end);
  PassOutcome end_with_others(const std::function<void()>& action);

  c10::intrusive_ptr<c10d::Backend> group_;
  ExchangeClaim exchange_;
  GradientBuckets memory_;
  PassAgreement agreement_;
  bool keeps_memory_;
  bool is_recording_;                     // until the plan is agreed on
  std::unique_ptr<GraphRecord> graph_;    // of a static graph, else null
  std::unique_ptr<Unreached> unreached_;  // where parameters may be unused
  StepDetector steps_;
  PassStatus status_;          // of the pass that runs
  std::vector<size_t> order_;  // in which gradients come, while recording
  size_t next_ = 0;            // bucket to start next
};

}  // namespace ddp::detail
