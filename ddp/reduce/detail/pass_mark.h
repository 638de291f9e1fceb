#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Information that each rank adds to a reduced backward pass, as a few
/// elements beside its gradients. The all-reduce of the gradients sums these
/// elements, too, so the ranks compare themselves without a further collective.
struct PassMark {
  bool stops = false;   ///< this rank votes to stop the training
  bool misses = false;  ///< a parameter that trains has no gradient
  bool asks = false;    ///< this rank asks for `PassFunctions::compare`
  /// Hash of the properties of the pass that must be equal on all ranks. Only
  /// the lowest `kHashBits` bits are sent.
  size_t hash = 0;
  bool knows_hash = true;  ///< false: `hash` is left out of the comparison
};

/// Result of the sum of all ranks' marks.
struct MarkSums {
  bool any_stops = false;
  bool all_stop = false;
  bool any_misses = false;
  bool any_asks = false;
  bool differs = false;  ///< the hashes of two ranks differ
};

inline constexpr int kHashBits = 16;
/// Number of elements of the vote to stop, and of a whole mark, which begins
/// with the vote.
inline constexpr int64_t kVoteNumel = 2;
inline constexpr int64_t kMarkNumel = kVoteNumel + 2 + 2 * kHashBits;

/// Writes this rank's marks and reads the sums of all ranks' marks: the part of
/// a pass in which CPUs and GPUs differ.
class PassMarks {
 public:
  virtual ~PassMarks() = default;

  /// Number of a mark's elements.
  virtual int64_t numel() const = 0;
  virtual void write(const PassMark& mark, const at::Tensor& elements) = 0;
  /// Returns the sums of one `write` or `vote`, as far as this rank can know
  /// them.
  virtual MarkSums read(const at::Tensor& sums) = 0;

  /// Records the write of a mark; `vote` sets its vote before each replay. On a
  /// GPU, after the first `write`.
  virtual void record(const at::Tensor& elements) = 0;
  virtual void vote(bool stops) = 0;
};

/// Makes the marks for elements on this type of device. Moving a new mark to a
/// GPU, or reading the sums there, stalls the host. So a mark on a GPU is the
/// vote alone, and a rank reads the sums only in a pass in which it votes to
/// stop, because all ranks have to stop after the same pass. `any_misses` is
/// always true there, because no rank knows.
std::unique_ptr<PassMarks> make_pass_marks(c10::DeviceType device);

/// Combines a hash with a further number. Every bit of the result depends on
/// both. Pure.
size_t mix_hash(size_t hash, size_t number);

}  // namespace ddp::detail
