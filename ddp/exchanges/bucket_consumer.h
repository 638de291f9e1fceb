#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "ddp/job/named_parameter.h"

namespace ddp::detail {

/// A bucket that an exchange prescribes. Its payload contains only gradients
/// and gaps. The values in the gaps do not matter.
struct PrescribedBucket {
  std::vector<size_t> parameters;  ///< indices of the reducer's parameters
  std::vector<int64_t> offsets;    ///< of the gradients, in elements
  int64_t numel = 0;               ///< of the payload
};

/// Second base class of an exchange that prescribes the buckets and consumes
/// their payloads: the result of an exchange does not become `.grad` of the
/// reducer's parameters.
///
/// - A payload has memory from `Exchange::allocate`, not zeroed, from its first
///   gradient to the return of its `finish`. `finish` is called as soon as the
///   next bucket has started. So two buckets have memory at once, or more if
///   gradients come in another order.
/// - A parameter's `.grad` is released after its copy into the bucket.
class BucketConsumer {
 public:
  virtual ~BucketConsumer() = default;

  /// Returns the buckets in the order in which they start, equal on all ranks.
  /// Each parameter is in one of them. Called once.
  virtual std::vector<PrescribedBucket> prescribe_buckets(
      c10::ArrayRef<NamedParameter> parameters) = 0;

  /// Called before a forward, for each parameter without a gradient of a local
  /// pass.
  /// @throws c10::Error if the parameter has a gradient that no pass has left.
  virtual void check_gradient(size_t parameter) const = 0;

  /// Called at the first gradient of a pass.
  virtual void begin_pass() = 0;

  /// Called for each gradient of a local pass. The gradient stays in the
  /// parameter's `.grad`.
  virtual void keep_local(size_t parameter) = 0;

  /// Replaces the marks of a pass by the sums over the ranks. Called after
  /// `finish` of the last bucket.
  virtual void sum_marks(const at::Tensor& marks) = 0;

  /// Called at the end of a pass that has succeeded.
  /// @param kept  parameters that keep their gradient, in ascending order.
  virtual void assign_except(const std::vector<size_t>& kept) = 0;
};

}  // namespace ddp::detail
