#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "ddp/tensors/tensor_walk.h"

namespace ddp::detail {

/// An argument of a forward: the caller's, or a copy whose floating tensors
/// have another dtype.
/// @tparam Arg  as deduced for a forwarding reference.
template <typename Arg>
class CastInput {
 public:
  CastInput(std::remove_reference_t<Arg>& argument,
            std::optional<c10::ScalarType> dtype)
      : argument_(argument) {
    if constexpr (kIsCast) {
      if (dtype) {
        copy_.emplace(argument);
        for_each_tensor(*copy_, [&](const at::Tensor& tensor) {
          if (tensor.defined() && tensor.is_floating_point()) {
            // Of a copy that is not const.
            const_cast<at::Tensor&>(tensor) = tensor.to(*dtype);
          }
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

/// `function(args...)`, with floating tensors in the dtype, where there is one.
template <typename Function, typename... Args>
decltype(auto) with_inputs_as(
    [[maybe_unused]] std::optional<c10::ScalarType> dtype,
    const Function& function,
    Args&&... args) {
  return function(CastInput<Args>(args, dtype).get()...);
}

}  // namespace ddp::detail
