#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace ddp::detail {

/// What the plan needs to know of one gradient.
struct GradientSpec {
  int64_t numel = 0;
  c10::ScalarType dtype = c10::kFloat;
  c10::Device device = c10::Device(c10::kCPU);
  bool sparse = false;
};

/// Bytes at which a bucket is full, of one dtype and device: the first, the
/// second and so on, the last of all later ones. At least one.
using BucketCaps = std::vector<int64_t>;

/// Indices of gradients, in the order in which they lie in the bucket.
using BucketPlan = std::vector<std::vector<size_t>>;

/// Pure: groups gradients into buckets of one dtype and one device each. A
/// sparse gradient has a bucket of its own.
///
/// Takes gradients in `order` (that in which they are expected to come) and
/// closes a bucket once it has reached its cap. Buckets are sorted by the place
/// of their last gradient in `order`, which is the order in which they fill.
///
/// Source: the rule of c10d::compute_bucket_assignment_by_size.
BucketPlan plan_buckets(const std::vector<GradientSpec>& gradients,
                        const std::vector<size_t>& order,
                        const BucketCaps& caps);

/// Pure: a plan as one number a gradient, to be sent: twice its index, and one
/// more where it is the last of its bucket.
std::vector<int64_t> to_numbers(const BucketPlan& plan);

/// Pure: the plan that these numbers stand for.
/// @param count  of gradients
/// @throws c10::Error when they stand for none: an index that is not below
///   `count` or comes twice, or a bucket without a last gradient.
BucketPlan plan_of(c10::ArrayRef<int64_t> numbers, size_t count);

}  // namespace ddp::detail
