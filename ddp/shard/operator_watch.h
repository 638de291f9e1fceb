#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>

namespace ddp::detail {

/// Memory of tensors with the key of `watch_operators`, or none.
class WatchedStorage : public c10::StorageImpl {
 public:
  /// Has no memory yet.
  /// @param error  text of the c10::Error that access throws without memory.
  WatchedStorage(int64_t bytes, at::Device device, std::string error);

  /// @param memory  is kept; if undefined, access throws.
  void set_memory(const at::Tensor& memory);
  /// Returns the tensor of the last `set_memory`.
  at::Tensor memory();

  /// Called before an operator runs that has a tensor of this memory as an
  /// argument. Throws if the operator must not run. The result is kept until
  /// the operator has returned.
  /// @param writes  the operator may change that tensor.
  virtual at::Tensor before_operator(const c10::FunctionSchema& op,
                                     bool writes) const = 0;

 protected:
  const std::string& error() const { return error_; }

 private:
  const std::string error_;
};

/// Returns false for an operator that reads no values of its arguments itself:
/// a view, or a new tensor like an argument. It may call an operator that reads
/// values, as `aten::contiguous` does.
bool reads_values(const c10::FunctionSchema& op);

/// Returns the memory of a tensor if it is watched, else null.
WatchedStorage* watched_storage_of(const at::Tensor& tensor);

/// Lets operators call `WatchedStorage::before_operator`: takes a dispatch key
/// above autograd and autocast that LibTorch leaves to others, for the rest of
/// the process. A tensor is watched if its storage is a `WatchedStorage` and
/// its key set has this key; so are its views. For such a tensor
/// `at::Tensor::record_stream` records the stream for `WatchedStorage::memory`,
/// because the allocator knows only this tensor.
/// @throws c10::Error if other libraries have taken all these keys.
c10::DispatchKey watch_operators();

/// Makes a tensor over a storage, without an operator.
/// @param like  gives dtype, device and keys; the key of `watch_operators` is
///   added.
at::Tensor watched_tensor(const at::Tensor& like,
                          const c10::intrusive_ptr<c10::StorageImpl>& storage,
                          at::IntArrayRef sizes,
                          at::IntArrayRef strides,
                          int64_t offset);

}  // namespace ddp::detail
