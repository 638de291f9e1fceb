#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace ddp::detail {

/// Properties of a gradient, or another tensor, that decide its bucket.
struct GradientSpec {
  int64_t numel = 0;
  c10::ScalarType dtype = c10::kFloat;
  c10::Device device = c10::Device(c10::kCPU);
  bool alone = false;  ///< gets a bucket of its own, for example if sparse
};

/// Sizes in bytes at which buckets of one dtype and device are full.
struct BucketCaps {
  int64_t first = 0;
  int64_t later = 0;
};

/// Pure: returns the cap of all buckets but the first one, in bytes, if the
/// program gives none. Over `ranks` ranks a bucket travels in 2 (ranks - 1)
/// messages of 1 / ranks of its size each. Gloo sends them over TCP, so half a
/// MiB is enough for a message; smaller buckets hide more of their time behind
/// the backward pass.
///
/// Source: 25 MiB as c10d::kDefaultBucketBytesCap.
int64_t default_bucket_cap(const std::string& backend, int ranks);

/// For each bucket the indices of its gradients, in the order of its memory.
using BucketPlan = std::vector<std::vector<size_t>>;

/// Pure: groups gradients into buckets of one dtype and one device each, except
/// gradients that are `alone`.
///
/// Adds gradients in `order`, the expected order of their arrival, and closes a
/// bucket when it has reached its cap. Buckets are sorted by the position of
/// their last gradient in `order`, which is the order in which they fill.
///
/// Source: the rule of c10d::compute_bucket_assignment_by_size.
BucketPlan plan_buckets(const std::vector<GradientSpec>& gradients,
                        const std::vector<size_t>& order,
                        const BucketCaps& caps);

/// Pure: encodes a plan to be sent, as one number per gradient: twice its
/// index, plus one if it is the last of its bucket.
std::vector<int64_t> to_numbers(const BucketPlan& plan);

/// Pure: decodes a plan.
/// @param count  number of gradients.
/// @throws c10::Error if an index is not below `count` or comes twice, or if a
///   bucket has no last gradient.
BucketPlan plan_of(c10::ArrayRef<int64_t> numbers, size_t count);

}  // namespace ddp::detail
