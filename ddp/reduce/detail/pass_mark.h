#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// One rank's mark in a reduced backward pass. The ranks add their marks in a
/// few elements beside their gradients, so that they learn of each other
/// without a collective of their own.
struct PassMark {
  bool stops = false;  ///< votes to stop the training
  bool asks = false;   ///< asks all ranks to compare what they know of the pass
  /// Hash of what all ranks have to do alike in a pass. The lowest
  /// `kHashBits` bits count.
  size_t hash = 0;
  bool knows_hash = true;
};

/// Marks of all ranks, summed.
struct MarkSums {
  bool any_stops = false;
  bool all_stop = false;
  bool any_asks = false;
  bool differs = false;  ///< the ranks' hashes are not equal
};

inline constexpr int kHashBits = 6;
/// Elements of the vote alone, and of a whole mark. The vote comes first.
inline constexpr int64_t kVoteNumel = 2;
inline constexpr int64_t kMarkNumel = kVoteNumel + 1 + 2 * kHashBits;

/// Encodes a mark as `numel` floats on the CPU: kVoteNumel or kMarkNumel of
/// them. Each bit is a pair of elements: (1, 0) stands for 0, (0, 1) for 1 and
/// (0, 0) for unknown. A sum of such elements is zero only if all are, in every
/// dtype and for any number of ranks; so ranks differ in a bit exactly if both
/// sums of its pair are nonzero.
at::Tensor encode_mark(const PassMark& mark, int64_t numel);

/// Decodes the sums of all ranks' elements. Waits for a GPU.
MarkSums decode_marks(const at::Tensor& sums);

/// Pure: combines a hash with a further number; every bit of the result depends
/// on both.
size_t mix_hash(size_t hash, size_t number);

}  // namespace ddp::detail
