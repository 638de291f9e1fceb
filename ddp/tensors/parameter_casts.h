#pragma once

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace ddp::detail {

/// Parameters that operators are to be given in another dtype.
class ParameterCasts {
 public:
  /// @param parameters  of which those are meant that are floating and of
  ///   another dtype; they must live as long.
  ParameterCasts(const std::vector<at::Tensor>& parameters,
                 c10::ScalarType dtype);

  bool contains(const at::Tensor& tensor) const;
  c10::ScalarType dtype() const { return dtype_; }

 private:
  std::unordered_set<const c10::TensorImpl*> parameters_;
  c10::ScalarType dtype_;
};

using ParameterCastsPtr = std::shared_ptr<const ParameterCasts>;

/// While it lives, each operator that this thread calls is given a copy of each
/// of the parameters in its place, unless it writes to it. A parameter is
/// copied once, and once more when it has changed; gradients go back through
/// the copy. Of several scopes only the innermost counts.
class CastScope {
 public:
  /// @param casts  not empty; of a parameter that several have, the last.
  explicit CastScope(std::vector<ParameterCastsPtr> casts);
  ~CastScope();
  CastScope(const CastScope&) = delete;
  CastScope& operator=(const CastScope&) = delete;

  /// Of this thread's innermost scope; empty without one.
  static std::vector<ParameterCastsPtr> active();

  /// The copy where this thread has a scope and the tensor is one of its
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
