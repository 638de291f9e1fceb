#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Information that each rank adds to a reduced backward pass, as a few
/// elements beside its gradients. The all-reduce of the gradients sums these
/// elements, too, so the ranks compare themselves without a further collective.
struct PassMark {
  bool stops = false;  ///< this rank votes to stop the training
  bool asks = false;   ///< this rank needs a full comparison of all ranks
  /// Hash of the properties of the pass that must be equal on all ranks. Only
  /// the lowest `kHashBits` bits are sent.
  size_t hash = 0;
  bool knows_hash = true;  ///< false: `hash` is left out of the comparison
};

/// Result of the sum of all ranks' marks.
struct MarkSums {
  bool any_stops = false;
  bool all_stop = false;
  bool any_asks = false;
  bool differs = false;  ///< the hashes of two ranks differ
};

inline constexpr int kHashBits = 16;
/// Number of elements of the vote to stop, and of a whole mark, which begins
/// with the vote.
inline constexpr int64_t kVoteNumel = 2;
inline constexpr int64_t kMarkNumel = kVoteNumel + 1 + 2 * kHashBits;

/// Encodes a mark as floats on the CPU. A bit is a pair of elements: (1, 0)
/// stands for 0, (0, 1) for 1 and (0, 0) for unknown. In every dtype and for
/// any number of ranks, a sum of such elements is zero only if each of them is
/// zero. Two ranks therefore differ in a bit exactly if both sums of its pair
/// are nonzero.
/// @param numel  kVoteNumel, to encode the vote alone, or kMarkNumel.
at::Tensor encode_mark(const PassMark& mark, int64_t numel);

/// Decodes the sums over ranks of the elements. Waits for a GPU.
MarkSums decode_marks(const at::Tensor& sums);

/// Combines a hash with a further number. Every bit of the result depends on
/// both. Pure.
size_t mix_hash(size_t hash, size_t number);

}  // namespace ddp::detail
