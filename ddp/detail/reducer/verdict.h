#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace ddp::detail {

/// Whether all ranks agree on a pass, told without a collective of its own:
/// elements that are summed over ranks with the gradients.
///
/// Each rank says whether it has failed, and a stamp: sixteen bits that are the
/// same on ranks that agree. A bit is two elements, of which one is zero: where
/// ranks differ, neither sum is. Zero stays zero in every dtype and for any
/// number of ranks.
///
/// Reads without waiting. On the CPU `read` speaks of the pass that has just
/// been reduced; on a GPU, where looking would stall the host, each pass is
/// known when its sums have arrived, none is forgotten.
class Verdict {
 public:
  static constexpr int64_t kNumel = 1 + 2 * 16;

  /// @param elements  of one dimension; `kNumel` of them.
  explicit Verdict(const at::Tensor& elements);

  /// Says it of the pass whose sums are next. Queues one copy.
  void write(const at::Tensor& elements, uint16_t stamp, bool failed);

  /// The sums of a pass are in `elements`, for what the current stream does
  /// next.
  void read(const at::Tensor& elements);

  /// True when all ranks agreed in every pass that is known by now.
  bool is_good();

  /// Waits until every pass that was read is known, at most `patience`; false
  /// when that was not enough.
  bool wait(std::chrono::milliseconds patience);

  /// Whether nothing bad is known, and nothing to come.
  bool is_settled() const { return good_ && pending_.empty(); }

  /// Forgets what was bad.
  void forgive() { good_ = true; }

 private:
  struct Reading {
    at::Tensor host;
    c10::Event arrived;
  };

  const at::Tensor& row_of(uint16_t stamp, bool failed);
  void look(const at::Tensor& host);

  at::TensorOptions options_;
  bool good_ = true;
  std::map<uint32_t, at::Tensor> rows_;
  std::deque<Reading> pending_;  // on a GPU; oldest first
  std::vector<Reading> spare_;
};

}  // namespace ddp::detail
