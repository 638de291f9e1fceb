#pragma once

#include <string>

#include <ATen/core/ivalue.h>

#include "ddp/detail/checkpoint/atomic_file.h"

namespace ddp::detail {

/// What a file holds.
struct TorchFile {
  c10::IValue value;
  /// Equal for equal contents; empty when the file's writer gave none.
  std::string content_id;
};

/// Reads a file that Python's torch.save or `write_torch_file` wrote. Tensors
/// lie on the CPU, wherever they were when they were saved, and share storages
/// as they did then. See `unpickle` for what Python's objects become.
///
/// @throws c10::Error that names the file, and what is wrong with it.
TorchFile read_torch_file(const std::string& path);

/// Writes what Python's torch.load reads with its defaults (weights_only), in
/// one step (see `AtomicFile`): nested dicts, lists (of type Any, as `new_dict`
/// and `new_list` make them) and tuples of None, bool, int, float, str and
/// dense tensors. Tensors are written without history and as CPU tensors, so
/// that the file loads on any machine.
///
/// @throws c10::Error that names the file and what failed; the file is then as
///   it was before.
void write_torch_file(const std::string& path,
                      const c10::IValue& value,
                      Disk& disk = AtomicFile::real_disk());

}  // namespace ddp::detail
