#pragma once

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/pickle/byte_reader.h"
#include "ddp/checkpoint/pickle/storage_table.h"

namespace ddp::detail {

/// Reads a pickle that torch.save wrote (protocols 2 to 5) without running
/// anything, and takes it off the front of `bytes`.
///
/// None, bool, int, float, complex, str, tuple, list, dict and its kin, scalars
/// of numpy, and dense tensors become the IValues of these kinds. Any other
/// Python object becomes an opaque one (python_value.h), so that a model loads
/// from a file that also holds, say, the program's arguments; no value becomes
/// another one. Tensors that share a storage in the file share it here.
///
/// Whatever the bytes are: the result holds no cycle and is no deeper than
/// `Nesting` says, and memory and time are a multiple of their number at most.
///
/// LibTorch's own torch::jit::Unpickler refuses a module's state_dict (its
/// `_metadata`) and trusts the file's counts.
///
/// @throws c10::Error that says what is wrong with the pickle.
c10::IValue unpickle(ByteReader& bytes, const StorageReader& reader);

}  // namespace ddp::detail
