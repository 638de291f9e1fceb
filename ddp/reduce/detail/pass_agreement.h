#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/pass_report.h"
#include "ddp/reduce/detail/status_sums.h"

namespace ddp::detail {

class PeerState;

/// One rank's status in a reduced backward pass.
struct PassStatus {
  int64_t number = 0;  ///< of reduced passes, this one included
  int reducer = 0;     ///< number of the reducer in its group
  /// Earlier passes that no optimizer step followed; see `StepDetector`.
  std::optional<int64_t> without_step;
  /// Parameters that train and got no gradient, in ascending order.
  std::vector<size_t> missing;
  /// Parameters that are frozen and got no gradient, in ascending order.
  std::vector<size_t> frozen;
  /// Parameters that got another number of gradients than in the first pass of
  /// a static graph, each with that number; "" for none.
  std::string changed;
  /// Parameters that the graph of the pass does not reach, and that got their
  /// gradient after their bucket had started; "" for none.
  std::string late;
  /// Exception that left this pass, or the previous one if the other ranks
  /// could not be told in it: one line, or "".
  std::string failure;
  /// This rank has no gradients, which is no error, and only completes the pass
  /// of the others.
  bool is_shadow = false;

  void add_changed(const std::string& name_and_count);
  void add_late(const std::string& name);

  /// Whether the pass has failed on this rank.
  bool has_failed(bool missing_fails) const;

  /// Bit 0 is the parity of the steps, the other bits are a hash of the frozen
  /// parameters. Ranks that differ by one step, or in frozen parameters, nearly
  /// always have different stamps.
  Stamp stamp() const;

  /// Prepares for the next pass; keeps `frozen` and `failure`.
  void reset();
};

/// How a pass has ended.
struct PassOutcome {
  std::vector<size_t> unused;  ///< parameters that keep `.grad`; ascending
  std::string error;           ///< "" if there is none
  /// The ranks' parameters differ from now on, so that no pass can follow.
  bool is_final = false;
  /// Of a bucket or an action at the end of the pass, on this rank.
  std::exception_ptr exception;
};

/// Meaning of a parameter without a gradient in a reduced pass.
enum class UnusedMode {
  refuse,          ///< an error
  find,            ///< unused in this pass
  find_on_demand,  ///< the same, for passes that seldom have one
  learn,           ///< unused in all passes, if so in the first one
};

/// Agreement of the ranks about each reduced backward pass: whether they made
/// the same pass, and which parameters it used. The only part of the reducer
/// that compares ranks. Calls of one pass, the same on every rank:
///
/// 1. `learn_unused`: before the buckets are planned, in the first pass.
/// 2. `write_status`: before the last bucket starts. Encodes the status in
///    elements that travel with that bucket (`StatusSums`).
/// 3. `start`: when all buckets have started. All-reduces these elements if no
///    bucket carries them.
/// 4. `finish`: when all buckets have finished. Reads the sums.
///
/// On the CPU the sums are known in `finish`. If a rank has failed or the ranks
/// differ, they gather their reports, and all of them get the same error with
/// ranks and names.
///
/// On a GPU, where reading the sums would stall the host, they come later. If
/// the pass has failed on this rank, `finish` reports that failure alone. The
/// other ranks get an error from `late_error` in a later pass, or in
/// `ddp::destroy_process_group()`, even if the model has gone by then.
///
/// A gradient that is missing on one rank:
/// - refuse: the pass fails on all ranks, as said above.
/// - find: an all-reduce of one element per parameter, the used map, follows
///   the buckets in each pass and carries the status. Parameters that no rank
///   used keep their `.grad`; others are averaged, with zeros of ranks that did
///   not use them. On a GPU the host waits for the map only if this rank has
///   unused parameters.
/// - find_on_demand: on the CPU, as `refuse`; if only gradients are missing,
///   the used map follows. No bucket is exchanged again, because it holds zeros
///   for them. On a GPU, as `find`, because a rank does not learn in time which
///   gradients other ranks miss. The first pass with a missing gradient is a
///   warning: on the CPU on rank 0 for all ranks, on a GPU on each rank for
///   itself.
/// - learn: only the first pass has a used map. Parameters that no rank used in
///   it leave the plan.
///
/// Thread contract: one thread at a time. `ddp::destroy_process_group()`, which
/// asks for the last passes, counts as a call.
class PassAgreement {
 public:
  /// @param buckets  must outlive this object.
  PassAgreement(c10::intrusive_ptr<c10d::Backend> group,
                const GradientBuckets& buckets,
                UnusedMode mode);
  ~PassAgreement();
  PassAgreement(const PassAgreement&) = delete;
  PassAgreement& operator=(const PassAgreement&) = delete;

  /// Returns the parameters that no rank uses in any pass, in ascending order.
  /// Collective in mode `learn`.
  std::vector<size_t> learn_unused(const PassStatus& status);

  void write_status(const PassStatus& status);
  void start();
  PassOutcome finish(const PassStatus& status);

  /// Drops what `start` began: the pass has failed, and none follows.
  void abandon() noexcept { work_.reset(); }

  /// Error of an earlier pass, as far as it is known by now; "" for none. Waits
  /// up to two seconds for the departure of the rank that caused it, and not at
  /// all if there is no error.
  std::string late_error();

 private:
  class UsedMap;

  bool missing_fails() const { return mode_ != UnusedMode::learn; }
  PassOutcome finish_with_map(const PassStatus& status);
  PassOutcome conclude(const PassStatus& status, bool missing_fails);
  std::vector<PassReport> gather_reports(const PassReport& mine);
  PassReport report_of(const PassStatus& status, bool missing_fails) const;
  std::string names_of(const std::vector<size_t>& indices) const;
  std::vector<size_t> without_gradient(const PassStatus& status) const;
  void add_check();
  void remove_check();

  c10::intrusive_ptr<c10d::Backend> group_;
  const GradientBuckets& buckets_;
  UnusedMode mode_;
  bool sends_map_;  // in every pass
  bool has_warned_ = false;
  std::unique_ptr<UsedMap> map_;           // null if no pass sends one
  std::vector<size_t> unused_;             // mode `learn`
  c10::intrusive_ptr<c10d::Work> work_;    // of `start`
  std::shared_ptr<StatusSums> sums_;       // shared with the check
  std::shared_ptr<PeerState> peer_state_;  // null without a check
  size_t check_ = 0;
};

}  // namespace ddp::detail
