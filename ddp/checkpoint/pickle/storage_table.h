#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Reads one storage, `count` elements of `element_size` bytes, into a uint8
/// tensor that owns its memory.
using StorageReader = std::function<at::Tensor(
    const std::string& key, int64_t count, int64_t element_size)>;

/// The storages that a pickle refers to. Each is read once, so tensors that
/// share a storage in the file share it in memory.
class StorageTable {
 public:
  explicit StorageTable(const StorageReader& reader) : reader_(reader) {}

  /// Resolves a persistent id to a `python_object`: a storage, with the class
  /// as its name and the bytes as its content, or a class.
  /// @throws c10::Error if torch.save does not write ids of this form.
  c10::IValue find(const c10::IValue& id);

 private:
  struct Storage {
    at::Tensor bytes;
    at::ScalarType dtype = at::ScalarType::Undefined;
  };

  const StorageReader& reader_;
  std::unordered_map<std::string, Storage> storages_;
};

}  // namespace ddp::detail
