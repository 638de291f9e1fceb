#pragma once

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace ddp::detail {

/// Parameters that operators receive in another dtype.
class ParameterCasts {
 public:
  /// @param parameters  only floating-point parameters of another dtype are
  ///   cast; they must outlive this object.
  ParameterCasts(const std::vector<at::Tensor>& parameters,
                 c10::ScalarType dtype);

  bool contains(const at::Tensor& tensor) const;
  c10::ScalarType dtype() const { return dtype_; }

 private:
  std::unordered_set<const c10::TensorImpl*> parameters_;
  c10::ScalarType dtype_;
};

using ParameterCastsPtr = std::shared_ptr<const ParameterCasts>;

/// In its scope, each operator that this thread calls receives a copy of each
/// parameter in the other dtype, unless the operator writes to the parameter. A
/// parameter is copied once, and again after it has changed. Gradients flow
/// back through the copy. Of nested scopes only the innermost applies.
class CastScope {
 public:
  /// @param casts  not empty; if several contain a parameter, the last one
  ///   applies.
  explicit CastScope(std::vector<ParameterCastsPtr> casts);
  ~CastScope();
  CastScope(const CastScope&) = delete;
  CastScope& operator=(const CastScope&) = delete;

  /// Returns the casts of this thread's innermost scope; empty without a scope.
  static std::vector<ParameterCastsPtr> active();

  /// Returns the copy if this thread has a scope and the tensor is one of its
  /// parameters, else null.
  static const at::Tensor* copy_of(const at::Tensor& tensor);

 private:
  struct Copy {
    at::Tensor tensor;
    int64_t version = 0;
  };

  std::vector<ParameterCastsPtr> casts_;
  std::unordered_map<const c10::TensorImpl*, Copy> copies_;
  CastScope* outer_;
  c10::impl::IncludeDispatchKeyGuard operators_;
};

}  // namespace ddp::detail
