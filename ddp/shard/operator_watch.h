#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>

namespace ddp::detail {

/// Memory of tensors with the key of `watch_operators`.
class WatchedStorage : public c10::StorageImpl {
 public:
  using c10::StorageImpl::StorageImpl;

  /// Called before an operator runs that has a tensor of this memory as an
  /// argument. Throws if the operator must not run. The result is kept until
  /// the operator has returned.
  /// @param writes  the operator may change that tensor.
  virtual at::Tensor before_operator(const c10::FunctionSchema& op,
                                     bool writes) const = 0;
};

/// Returns false for an operator that reads no values of its arguments itself:
/// a view, or a new tensor like an argument. It may call an operator that reads
/// values, as `aten::contiguous` does.
bool reads_values(const c10::FunctionSchema& op);

/// Whether access to a storage's memory throws, after LibTorch's
/// `release_data_and_set_meta_custom_data_ptr_error_msg_` has set its text.
/// LibTorch itself cannot end this state.
void set_access_throws(c10::StorageImpl& storage, bool throws);

/// Returns the memory of a tensor if it is watched, else null.
WatchedStorage* watched_storage_of(const at::Tensor& tensor);

/// Lets operators call `WatchedStorage::before_operator`: takes a dispatch key
/// above autograd and autocast that LibTorch leaves to others, for the rest of
/// the process. A tensor is watched if its storage is a `WatchedStorage` and
/// its key set has this key; so are its views.
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
