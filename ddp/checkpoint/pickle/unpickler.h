#pragma once

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/pickle/byte_reader.h"
#include "ddp/checkpoint/pickle/storage_table.h"

namespace ddp::detail {

/// Reads a pickle that torch.save wrote (protocols 2 to 5) from the front of
/// `bytes`, without executing any code.
///
/// None, bool, int, float, complex, str, tuple, list, dict and its subclasses,
/// scalars of numpy, and dense tensors become IValues of the same type. Any
/// other Python object becomes an opaque placeholder (python_value.h), so that
/// a model loads from a file that also contains, for example, the program's
/// arguments. No value changes into another value. Tensors that share a storage
/// in the file share it in memory.
///
/// For any input, the result has no cycles and is at most as deep as `Nesting`
/// allows, and memory and time are at most proportional to the size of the
/// input.
///
/// Used instead of LibTorch's torch::jit::Unpickler, which rejects a module's
/// state_dict (its `_metadata`) and trusts the counts in the file.
///
/// @throws c10::Error with the reason if the pickle is invalid.
c10::IValue unpickle(ByteReader& bytes, const StorageReader& reader);

}  // namespace ddp::detail
