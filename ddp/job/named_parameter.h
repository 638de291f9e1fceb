#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace ddp {

/// A parameter and its name in error messages.
struct NamedParameter {
  std::string name;   ///< name in error messages
  at::Tensor tensor;  ///< the parameter
  /// True if its gradients are sparse tensors, as for an Embedding with
  /// sparse(true).
  bool sparse = false;
};

}  // namespace ddp
