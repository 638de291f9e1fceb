#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Reads one storage, `count` elements of `element_size` bytes, into a uint8
/// tensor that owns its memory.
using StorageReader = std::function<at::Tensor(
    const std::string& key, int64_t count, int64_t element_size)>;

/// Maximum depth of the values of a pickle, which is the depth to which
/// Python's recursion limit lets it save.
inline constexpr int kMaxDepth = 1000;

/// Reads a pickle that torch.save wrote (protocols 2 to 5), without executing
/// any code.
///
/// None, bool, int, float, complex, str, tuple, list, dict and its subclasses,
/// and dense tensors become IValues of the same type. Any other Python object
/// becomes an opaque placeholder (python_value.h), so that a model loads from a
/// file that also contains, for example, the program's arguments. No value
/// changes into another value. Each storage is read once, so tensors that share
/// a storage in the file share it in memory.
///
/// For any input, the result has no cycles and is at most `kMaxDepth` levels
/// deep, so that recursive functions can walk and free it, and memory and time
/// are at most proportional to the size of the input.
///
/// Used instead of LibTorch's torch::jit::Unpickler, which rejects a module's
/// state_dict (its `_metadata`) and trusts the counts in the file.
///
/// @throws c10::Error with the reason if the pickle is invalid.
c10::IValue unpickle(std::string_view pickle, const StorageReader& reader);

}  // namespace ddp::detail
