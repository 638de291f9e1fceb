#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// A value as Python's torch.save writes it.
struct Pickled {
  std::string bytes;
  /// Storage i of the pickle: returns its bytes on the CPU, in memory that the
  /// value's tensors may share. Each storage of the value's tensors occurs
  /// once. Call the functions in this order: the reads of a DeferredTensor may
  /// be collective.
  std::vector<std::function<at::Tensor()>> storages;
};

/// Pickles nested dicts, lists and tuples of None, bool, int, float, complex,
/// str, dense tensors and DeferredTensors. Python's torch.load reads the result
/// with its defaults (weights_only). Tensors lose their autograd history and
/// their device, so that the file loads on any machine; they keep their dtype,
/// strides, shared storages and conjugate bits.
///
/// Used instead of LibTorch's torch::jit::Pickler, which for newer dtypes
/// writes names of storage classes that do not exist in Python.
///
/// @throws c10::Error for any other value, with its position.
Pickled pickle(const c10::IValue& value);

/// Reads all storages and copies the storages that the value shares, so that
/// the value may change before the file is written.
void copy_storages(Pickled& pickled);

}  // namespace ddp::detail
