#pragma once

#include <cstddef>
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

/// Reduces backward passes over a group; `ReducerImpl` decides when. Calls of
/// one pass: `begin`, `add` for each gradient, `end`, `assign_grads` if the
/// pass succeeded, and `reset` in any case.
///
/// Until the ranks have agreed on a plan, a pass only records: gradients go
/// into their buckets, and their order is recorded. At the end rank 0 plans,
/// and all buckets start and finish. In later passes a bucket starts when it is
/// full, and the end starts the rest.
///
/// Thread contract: one call at a time, with gradient recording off, and the
/// same calls on all ranks.
class Reduction {
 public:
  Reduction(std::vector<NamedParameter> parameters,
            c10::intrusive_ptr<c10d::Backend> group,
            const DistributedDataParallelOptions& options);
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  std::vector<NamedParameter> parameters() const;
  const at::Tensor& parameter(size_t index) const {
    return buckets_.parameter(index).tensor;
  }
  const BucketPlan& plan() const { return buckets_.plan(); }

  /// See `PassAgreement`.
  std::string late_error() { return agreement_.late_error(); }

  /// Records a gradient of a pass of this rank alone.
  void record_local(size_t index) { buckets_.record_local(index); }
  /// Takes over the records of another reduction of the same parameters.
  void copy_local_records(const Reduction& other);

  /// Sets the exception, one line, that has left this pass. The other ranks
  /// learn of it at the end of this pass or, if that is over, of the next one.
  void set_failure(std::string text) { status_.failure = std::move(text); }

  /// @param ranks  number of ranks in the average.
  void begin(int ranks);
  /// Begins a pass in which this rank has no gradients: no `add` follows.
  void begin_shadow(int ranks);
  /// Puts the gradient of a parameter into its bucket.
  void add(size_t index);

  /// Whether buckets start without parameters that the pass does not reach.
  bool skips_unreached() const { return unreached_ != nullptr; }
  /// Called once per pass if so.
  /// @param unreached  in ascending order.
  void skip_unreached(const std::vector<size_t>& unreached);

  /// Completes the pass with the other ranks, also after one failure.
  /// @param action  called after the buckets have finished; may be empty.
  /// @throws the first exception if there is a second one.
  PassOutcome end(const std::function<void()>& action);

  /// Makes the averages the parameters' `.grad`.
  /// @param kept  parameters that keep their `.grad`, besides frozen ones.
  void assign_grads(std::vector<size_t> kept);

  /// Drops the pass: `add` or `end` has thrown, and no pass follows.
  void abandon() noexcept;

  /// Prepares for the next pass.
  void reset();

  /// Restarts the comparison of the ranks' steps.
  void forget_steps() { steps_ = StepDetector(replicated_parameters()); }

 private:
  /// Parameters that are equal on all ranks if these step alike.
  std::vector<at::Tensor> replicated_parameters() const;
  void open(int ranks);
  void add_to_bucket(size_t index);
  bool comes_too_late(size_t index);
  void learn_graph();
  void compare_graph();
  void fill_frozen();
  void fill_unused();
  void fill_missing(size_t index);
  void fill_all_missing();
  bool fill_unreached(size_t bucket);
  void agree_on_plan();
  void start_full_buckets(size_t end);
  PassOutcome finish(const std::function<void()>& action);

  c10::intrusive_ptr<c10d::Backend> group_;
  // Of the current pass. Holds the reducer's number in the group, which is
  // drawn before an exchange may be refused on one rank alone.
  PassStatus status_;
  ExchangeClaim exchange_;
  GradientBuckets buckets_;
  PassAgreement agreement_;
  bool keeps_memory_;
  bool is_recording_;                     // until the plan is agreed on
  std::unique_ptr<GraphRecord> graph_;    // of a static graph, else null
  std::unique_ptr<Unreached> unreached_;  // if parameters may be unused
  StepDetector steps_;
  std::vector<size_t> order_;  // of gradients, while recording
  size_t next_ = 0;            // bucket to start next
};

}  // namespace ddp::detail
