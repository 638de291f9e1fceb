#pragma once

#include <string>

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/pickle/atomic_file.h"
#include "ddp/checkpoint/pickle/pickler.h"

namespace ddp::detail {

/// What a file holds.
struct TorchFile {
  c10::IValue value;
  /// The same for the same contents; a check sum of all that was read.
  std::string content_id;
};

/// Reads a file that Python's torch.save or `write_torch_file` wrote. Tensors
/// lie on the CPU, wherever they were when they were saved, and share storages
/// as they did then. See `unpickle` for what Python's objects become.
///
/// Whatever the file is, it takes little more memory than its size (twice, in
/// the format before PyTorch 1.6), and returns or throws in bounded time.
///
/// @throws c10::Error that names the file, and what is wrong with it.
TorchFile read_torch_file(const std::string& path);

/// Writes a value that `pickle` takes, or has taken, so that Python's
/// torch.load reads it with its defaults, in one step (see `AtomicFile`).
///
/// @throws c10::Error that names the file and what failed; the file is then as
///   it was before.
void write_torch_file(const std::string& path,
                      const c10::IValue& value,
                      Disk& disk = AtomicFile::real_disk());
void write_torch_file(const std::string& path,
                      const Pickled& pickled,
                      Disk& disk = AtomicFile::real_disk());

}  // namespace ddp::detail
