#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/job/stop_vote.h"
#include "ddp/reduce/detail/late_reads.h"
#include "ddp/reduce/detail/pass_account.h"

namespace ddp::detail {

/// Whether all ranks agree on a pass, told without a collective of its own:
/// elements that are summed over ranks with the gradients.
///
/// Each rank says whether it has failed, and a stamp: sixteen bits that are the
/// same on ranks that agree. A bit is two elements, of which one is zero: where
/// ranks differ, neither sum is. Zero stays zero in every dtype and for any
/// number of ranks. Who does not know a bit leaves both zero and so agrees with
/// all. By one bit more, in which they may differ, they agree on a stop. Four
/// bits tell reducers apart: where ranks differ in them, a pass has met that of
/// another model.
///
/// Reads without waiting. On the CPU `read` speaks of the pass that has just
/// been reduced; on a GPU, where looking would stall the host, each pass is
/// known when its sums have arrived, none is forgotten. Only a rank that says
/// it is to stop waits for them.
class Verdict {
 public:
  static constexpr int64_t kNumel = 1 + 2 * 16 + 2 + 2 * 4;

  /// @param vote  of this rank on a stop.
  explicit Verdict(
      const at::TensorOptions& elements,
      std::shared_ptr<StopVote> vote = std::make_shared<StopVote>());

  /// Says it of the pass whose sums are next, in one dimension of `kNumel`
  /// elements. Queues one copy.
  void write(const at::Tensor& elements, const Stamp& stamp, bool failed);

  /// The sums of a pass are in `elements`, for what the current stream does
  /// next.
  void read(const at::Tensor& elements);

  /// True when all ranks agreed in every pass that is known by now.
  bool is_good();

  /// Whether a pass that is known by now has met that of another reducer, on
  /// all ranks whose sums these are.
  bool is_crossed() const { return crossed_; }

  /// Waits until every pass that was read is known, at most `patience`; false
  /// when that was not enough.
  bool wait(std::chrono::milliseconds patience);

  /// Whether nothing bad is known, and nothing to come.
  bool is_settled() const { return good_ && reads_.empty(); }

  /// Forgets what was bad.
  void forgive() { good_ = true; }

 private:
  using Rows = std::vector<at::Tensor>;  // by what bit 0 is: 0, 1, not known

  const at::Tensor& row_of(const Stamp& stamp, bool failed);
  void look(const at::Tensor& host);

  at::TensorOptions options_;
  std::shared_ptr<StopVote> vote_;
  bool good_ = true;
  bool crossed_ = false;
  std::map<uint32_t, Rows> rows_;
  LateReads reads_;  // on a GPU
};

}  // namespace ddp::detail
