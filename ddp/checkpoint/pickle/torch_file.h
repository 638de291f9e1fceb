#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include "ddp/base/atomic_file.h"
#include "ddp/checkpoint/pickle/pickler.h"

namespace ddp::detail {

/// A storage in the memory of a mapped file. The destructor gives the storage
/// memory of its own if tensors still use it.
class MappedStorage {
 public:
  explicit MappedStorage(c10::Storage storage) : storage_(std::move(storage)) {}
  MappedStorage(MappedStorage&&) = default;
  MappedStorage& operator=(MappedStorage&&) = default;
  ~MappedStorage();

 private:
  c10::Storage storage_;
};

/// The content of a file. While a TorchFile exists, large storages of `value`
/// are mapped: several processes that load one file need its memory only once,
/// in the kernel's page cache. Tensors that outlive the TorchFile then own
/// their memory.
struct TorchFile {
  std::vector<MappedStorage> mapped;  // destroyed after the value
  c10::IValue value;
  /// Equal for equal contents: a check sum of all bytes that were read.
  std::string content_id;
};

/// Reads a file that Python's torch.save or `write_torch_file` wrote. The
/// tensors are on the CPU, for any original device, and share storages
/// as they did when they were saved. See `unpickle` for the conversion of
/// Python objects.
///
/// For any file content, this function needs at most the memory of the file's
/// storages, of which it maps the large ones, and about 450 bytes for each byte
/// of its pickle, and returns or throws in bounded time.
///
/// @throws c10::Error that names the file and the reason. The error of a file
///   in torch.save's format before PyTorch 1.6 tells how to convert it.
TorchFile read_torch_file(const std::string& path);

/// Writes a value that `pickle` supports, or its result, so that Python's
/// torch.load reads it with its defaults. Replaces the file atomically (see
/// `AtomicFile`).
///
/// @throws c10::Error that names the file and the failed operation; the file is
///   then unchanged.
void write_torch_file(const std::string& path,
                      const c10::IValue& value,
                      Disk& disk = AtomicFile::real_disk());
void write_torch_file(const std::string& path,
                      const Pickled& pickled,
                      Disk& disk = AtomicFile::real_disk());

}  // namespace ddp::detail
