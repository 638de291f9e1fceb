#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Gives the bytes of one storage, as a uint8 tensor that owns them.
using StorageReader = std::function<at::Tensor(const std::string& key)>;

/// Reads a pickle that torch.save wrote (protocol 2) without running anything:
/// None, bool, int, float, str, tuple, list, dict and its kin, and dense
/// tensors become the IValues of these kinds. Any other Python object becomes
/// an opaque one (python_value.h), so that a model loads from a file that
/// also holds, say, the program's arguments. Tensors that share a storage
/// in the file share it here.
///
/// LibTorch's own torch::jit::Unpickler refuses a module's state_dict (its
/// `_metadata`) and trusts the file's counts.
///
/// @throws c10::Error that says what is wrong with the pickle.
c10::IValue unpickle(std::string_view pickle, const StorageReader& reader);

}  // namespace ddp::detail
