#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// A value as Python's torch.save writes it.
struct Pickled {
  std::string bytes;
  /// What the pickle calls storage 0, 1, ...: bytes on the CPU, each storage of
  /// the value's tensors once.
  std::vector<at::Tensor> storages;
};

enum class Storages { shared, copied };

/// Pickles nested dicts, lists and tuples of None, bool, int, float, complex,
/// str and dense tensors, so that Python's torch.load reads it with its
/// defaults (weights_only). Tensors lose their history and their device, so
/// that the file loads on any machine; they keep their dtype, strides, shared
/// storages and conjugate bits.
///
/// LibTorch's own torch::jit::Pickler names storage classes that Python does
/// not have for its newer dtypes.
///
/// @param storages  whether those on the CPU share memory with the tensors, or
///   are copies, for a value that changes before it is written.
/// @throws c10::Error for any other value, and says where it is.
Pickled pickle(const c10::IValue& value, Storages storages = Storages::shared);

}  // namespace ddp::detail
