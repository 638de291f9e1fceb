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

template <typename Function>
struct FunctionType {
  using type = Function;
};
/// Returns the function type of a member function, which may be noexcept.
template <typename R, typename M, typename... Args>
FunctionType<R(Args...)> function_type(R (M::*)(Args...));
template <typename R, typename M, typename... Args>
FunctionType<R(Args...)> function_type(R (M::*)(Args...) const);

/// The type of a module's `forward` as a function type; void if `forward` is
/// overloaded or a template.
template <typename M, typename = void>
struct ForwardSignature {
  using type = void;
};
template <typename M>
struct ForwardSignature<M, std::void_t<decltype(function_type(&M::forward))>>
    : decltype(function_type(&M::forward)) {};
/// Sequential's `forward` is a template with this default type.
template <>
struct ForwardSignature<torch::nn::SequentialImpl> {
  using type = at::Tensor(at::Tensor);
};

/// The module type of a holder (`TORCH_MODULE`), or `M` itself for a module.
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

/// Gives access to the default arguments of a module's `forward`. LibTorch
/// declares this template a friend of Module.
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

/// Adds to a wrapper a `forward` with the signature of the wrapped module's
/// `forward`, because torch::nn::AnyModule and torch::nn::Sequential do not
/// accept a template. Without a unique signature this is the wrapper itself.
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

  // AnyModule reads the default arguments of the wrapped module here.
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
