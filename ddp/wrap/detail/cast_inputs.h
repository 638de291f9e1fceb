#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "ddp/tensors/replace_tensors.h"
#include "ddp/tensors/tensor_walk.h"

namespace ddp::detail {

/// An argument of a forward: either the caller's object, or a copy whose
/// floating-point tensors are converted to another dtype. Arguments that cannot
/// hold tensors or cannot be copied stay as they are. The constructor throws
/// c10::Error if `tensor_fields` of a struct returns copies of such tensors.
/// @tparam Arg  the type deduced for a forwarding reference.
template <typename Arg>
class CastInput {
 public:
  CastInput(std::remove_reference_t<Arg>& argument,
            std::optional<c10::ScalarType> dtype)
      : argument_(argument) {
    if constexpr (kIsCast) {
      if (dtype) {
        copy_.emplace(argument);
        replace_tensors(*copy_, [&](const at::Tensor& tensor) {
          return tensor.defined() && tensor.is_floating_point()
                     ? tensor.to(*dtype)
                     : tensor;
        });
      }
    }
  }

  Arg&& get() {
    if constexpr (kIsCast) {
      if (copy_) {
        return static_cast<Arg&&>(*copy_);
      }
    }
    return static_cast<Arg&&>(argument_);
  }

 private:
  struct None {};
  using Value = std::remove_cv_t<std::remove_reference_t<Arg>>;
  static constexpr bool kIsCast =
      may_hold_tensors<Value> && std::is_copy_constructible_v<Value>;

  std::remove_reference_t<Arg>& argument_;
  std::conditional_t<kIsCast, std::optional<Value>, None> copy_;
};

/// Returns `function(args...)`, called with floating-point tensors converted to
/// `dtype` if it is set.
template <typename Function, typename... Args>
decltype(auto) with_inputs_as(
    [[maybe_unused]] std::optional<c10::ScalarType> dtype,
    const Function& function,
    Args&&... args) {
  return function(CastInput<Args>(args, dtype).get()...);
}

}  // namespace ddp::detail
