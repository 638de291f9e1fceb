#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/job/stop_vote.h"
#include "ddp/reduce/detail/async_host_copies.h"

namespace ddp::detail {

/// Bits of a rank's pass that have to be equal on all ranks.
struct Stamp {
  uint16_t bits = 0;
  bool knows_bit_0 = true;
  bool knows_others = true;
  uint8_t reducer = 0;  ///< low four bits of the reducer's number; always known
};

/// Compares the stamps of all ranks without a collective of its own: a rank
/// encodes its status in `kNumel` elements, which an all-reduce of gradients
/// sums.
///
/// One element is nonzero if the rank has failed. Each bit is a pair of
/// elements: (1, 0) stands for 0, (0, 1) for 1, (0, 0) for unknown. Ranks
/// differ in a bit exactly if both sums of its pair are nonzero. Zero stays
/// zero in every dtype and for any number of ranks. The pairs are the 16 bits
/// of the stamp, the rank's stop vote (in which ranks may differ), and four
/// bits of the reducer's number: if these differ, the pass has met a pass of
/// another model.
///
/// On the CPU the sums are decoded at once. On a GPU, where reading would stall
/// the host, they are copied asynchronously, and each pass is decoded when its
/// copy has arrived. Only a rank that votes to stop waits for the copy.
class StatusSums {
 public:
  static constexpr int64_t kNumel = 1 + 2 * 16 + 2 + 2 * 4;

  /// @param device  usually that of the elements.
  explicit StatusSums(
      c10::Device device,
      std::shared_ptr<StopVote> vote = std::make_shared<StopVote>());

  /// Encodes this rank's status in `elements`: one dimension, `kNumel` long.
  /// Queues one copy.
  void write(const at::Tensor& elements, const Stamp& stamp, bool has_failed);

  /// Reads the sums of a pass, which the current stream has computed.
  void read(const at::Tensor& elements);

  /// Whether no rank failed and all stamps were equal in every decoded pass.
  bool all_agree();

  /// Whether a decoded pass has met a pass of another reducer.
  bool met_other_reducer() const { return met_other_reducer_; }

  /// Waits until every pass that was read is decoded. Returns false if this
  /// takes longer than `patience`.
  bool wait(std::chrono::milliseconds patience);

  /// Whether every pass that was read is decoded and all ranks agreed.
  bool is_settled() const { return all_agree_ && copies_.empty(); }

  /// Makes `all_agree` true again.
  void forget_disagreement() { all_agree_ = true; }

 private:
  using Rows = std::vector<at::Tensor>;  // for bit 0: 0, 1, unknown

  const at::Tensor& encoded(const Stamp& stamp, bool has_failed);
  void decode(const at::Tensor& host);

  c10::Device device_;
  std::shared_ptr<StopVote> vote_;
  bool all_agree_ = true;
  bool met_other_reducer_ = false;
  std::map<uint32_t, Rows> rows_;
  AsyncHostCopies copies_;  // on a GPU
};

}  // namespace ddp::detail
