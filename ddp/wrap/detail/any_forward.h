#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace torch::nn {
class SequentialImpl;
template <typename ModuleType, typename... ArgumentTypes>
struct AnyModuleHolder;
}  // namespace torch::nn

namespace ddp::detail {

/// `R(Args...)` of a member function; void where it has another type.
template <typename Member>
struct FunctionOf {
  using type = void;
};
template <typename R, typename M, typename... Args>
struct FunctionOf<R (M::*)(Args...)> {
  using type = R(Args...);
};
template <typename R, typename M, typename... Args>
struct FunctionOf<R (M::*)(Args...) const> {
  using type = R(Args...);
};

/// The type of a module's `forward` as a function; void where it is overloaded
/// or a template, so that it has no one type.
template <typename M, typename = void>
struct ForwardSignature {
  using type = void;
};
template <typename M>
struct ForwardSignature<M, std::void_t<decltype(&M::forward)>>
    : FunctionOf<decltype(&M::forward)> {};
/// A template, by default of this type.
template <>
struct ForwardSignature<torch::nn::SequentialImpl> {
  using type = at::Tensor(at::Tensor);
};

/// The module type of a holder (`TORCH_MODULE`); a module's own.
template <typename M, typename = void>
struct ContainedModule {
  using type = M;
};
template <typename M>
struct ContainedModule<M, std::void_t<typename M::ContainedType>> {
  using type = typename M::ContainedType;
};

struct ForwardDefaults;

}  // namespace ddp::detail

/// LibTorch tells the default arguments of a `forward` to this template alone.
template <>
struct torch::nn::AnyModuleHolder<ddp::detail::ForwardDefaults> {
  static bool has(Module& module) { return module._forward_has_default_args(); }
  static unsigned int required(Module& module) {
    return module._forward_num_required_args();
  }
  static std::vector<AnyValue> populate(Module& module,
                                        std::vector<AnyValue>&& arguments) {
    return module._forward_populate_default_args(std::move(arguments));
  }
};

namespace ddp::detail {

/// A wrapper whose `forward` takes anything, with the one `forward` of its
/// module in front: torch::nn::AnyModule, and so torch::nn::Sequential, take no
/// template. The wrapper itself where the module's has no one type.
template <typename Wrapper, typename Signature>
class AnyForward : public Wrapper {
 public:
  using Wrapper::Wrapper;
};

template <typename Wrapper, typename R, typename... Args>
class AnyForward<Wrapper, R(Args...)> : public Wrapper {
 public:
  using Wrapper::Wrapper;

  std::decay_t<R> forward(Args... args) {
    return Wrapper::forward(std::forward<Args>(args)...);
  }

  // Those of the module, for AnyModule.
  bool _forward_has_default_args() override {
    return Defaults::has(*this->module());
  }
  unsigned int _forward_num_required_args() override {
    return Defaults::required(*this->module());
  }
  std::vector<torch::nn::AnyValue> _forward_populate_default_args(
      std::vector<torch::nn::AnyValue>&& arguments) override {
    return Defaults::populate(*this->module(), std::move(arguments));
  }

 private:
  using Defaults = torch::nn::AnyModuleHolder<ForwardDefaults>;
};

}  // namespace ddp::detail
