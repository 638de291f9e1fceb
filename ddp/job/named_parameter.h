#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace ddp {

/// A parameter and the name that errors call it by.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  /// Its gradients are sparse tensors, as of an Embedding with sparse(true).
  bool sparse = false;
};

}  // namespace ddp
