#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Gives the bytes of one storage, `count` elements of `element_size` bytes, as
/// a uint8 tensor that owns them.
using StorageReader = std::function<at::Tensor(
    const std::string& key, int64_t count, int64_t element_size)>;

/// The storages that a pickle refers to. Each is read once, so that tensors
/// that share a storage in the file share it here.
class StorageTable {
 public:
  explicit StorageTable(const StorageReader& reader) : reader_(reader) {}

  /// What a persistent id stands for: a `python_object` of the storage's class
  /// that holds its bytes, or a class.
  /// @throws c10::Error when torch.save writes no such id.
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
