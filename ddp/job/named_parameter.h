#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace ddp {

/// A parameter and its name. The name is shown in error messages, and a
/// `PowerSGD` finds its state by the name, so parameters need different names.
struct NamedParameter {
  std::string name;   ///< name in error messages
  at::Tensor tensor;  ///< the parameter
  /// True if its gradients are sparse tensors, as for an Embedding with
  /// sparse(true). If false, a sparse gradient is an error of `backward()`.
  bool sparse = false;
};

}  // namespace ddp
