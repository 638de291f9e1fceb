#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// A value as Python's torch.save writes it.
struct Pickled {
  std::string bytes;
  /// Storage i of the pickle: bytes on the CPU. Each storage of the value's
  /// tensors occurs once.
  std::vector<at::Tensor> storages;
};

/// Whether storages on the CPU share memory with the tensors or are copied.
enum class Storages { shared, copied };

/// Pickles nested dicts, lists and tuples of None, bool, int, float, complex,
/// str and dense tensors. Python's torch.load reads the result with its
/// defaults (weights_only). Tensors lose their autograd history and their
/// device, so that the file loads on any machine; they keep their dtype,
/// strides, shared storages and conjugate bits.
///
/// Used instead of LibTorch's torch::jit::Pickler, which for newer dtypes
/// writes names of storage classes that do not exist in Python.
///
/// @param storages  `copied` for a value that changes before it is written.
/// @throws c10::Error for any other value, with its position.
Pickled pickle(const c10::IValue& value, Storages storages = Storages::shared);

}  // namespace ddp::detail
