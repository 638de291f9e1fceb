#include "ddp/tensors/parameter_casts.h"

#include <algorithm>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace ddp::detail {
namespace {

// A key above autograd and autocast, which LibTorch reserves for other
// libraries.
constexpr auto kOperatorKey = c10::DispatchKey::DeferredInit;

thread_local CastScope* innermost = nullptr;

/// Like to(), but its backward accepts sparse gradients, too.
struct Cast : torch::autograd::Function<Cast> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& tensor,
                            c10::ScalarType dtype) {
    context->saved_data["dtype"] = tensor.scalar_type();
    context->set_materialize_grads(false);
    return tensor.to(dtype);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    const auto dtype = context->saved_data["dtype"].toScalarType();
    const auto& grad = grads[0];
    return {grad.defined() ? grad.to(dtype) : at::Tensor(), at::Tensor()};
  }
};

/// Replaces the value by its copy if it is one of the parameters, or a list
/// that contains some.
void replace(c10::IValue& value) {
  if (value.isTensor()) {
    if (const auto* copy = CastScope::copy_of(value.toTensor())) {
      value = *copy;
    }
  } else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    bool has_copies = false;
    for (auto& tensor : tensors) {
      if (const auto* copy = CastScope::copy_of(tensor)) {
        tensor = *copy;
        has_copies = true;
      }
    }
    if (has_copies) {
      value = std::move(tensors);
    }
  }
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Calls the operator with copies. Operators that it calls in turn are not
/// redirected again, because their arguments are copies already.
void call_with_copies(const c10::OperatorHandle& op,
                      c10::DispatchKeySet /*keys*/,
                      torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kOperatorKey);
  const auto& arguments = op.schema().arguments();
  const auto first = stack->end() - static_cast<ptrdiff_t>(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_written(arguments[i])) {
      replace(first[static_cast<ptrdiff_t>(i)]);
    }
  }
  op.callBoxed(stack);
}

/// Installs the fallback once per process, when it first needs casts: it costs
/// a walk over all operators.
void hook_operators() {
  static const auto hooked = [] {
    auto library = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", kOperatorKey, __FILE__, __LINE__);
    library->fallback(
        torch::CppFunction::makeFromBoxedFunction<&call_with_copies>());
    return library;
  }();
  static_cast<void>(hooked);
}

}  // namespace

ParameterCasts::ParameterCasts(const std::vector<at::Tensor>& parameters,
                               c10::ScalarType dtype)
    : dtype_(dtype) {
  for (const auto& parameter : parameters) {
    if (parameter.is_floating_point() && parameter.scalar_type() != dtype) {
      parameters_.insert(parameter.unsafeGetTensorImpl());
    }
  }
  hook_operators();
}

bool ParameterCasts::contains(const at::Tensor& tensor) const {
  return parameters_.count(tensor.unsafeGetTensorImpl()) > 0;
}

CastScope::CastScope(std::vector<ParameterCastsPtr> casts)
    : casts_(std::move(casts)),
      outer_(std::exchange(innermost, this)),
      operators_(kOperatorKey) {}

CastScope::~CastScope() {
  innermost = outer_;
}

std::vector<ParameterCastsPtr> CastScope::active() {
  return innermost != nullptr ? innermost->casts_
                              : std::vector<ParameterCastsPtr>();
}

/// The copy has a graph even if gradients are not recorded now: later operators
/// may record.
const at::Tensor* CastScope::copy_of(const at::Tensor& tensor) {
  if (innermost == nullptr || !tensor.defined()) {
    return nullptr;
  }
  const auto& all = innermost->casts_;
  const auto casts =
      std::find_if(all.rbegin(), all.rend(), [&](const auto& some) {
        return some->contains(tensor);
      });
  if (casts == all.rend()) {
    return nullptr;
  }
  auto& [copy, version] = innermost->copies_[tensor.unsafeGetTensorImpl()];
  if (!copy.defined() || version != tensor._version()) {
    const at::AutoGradMode with_graph(true);
    version = tensor._version();
    copy = Cast::apply(tensor, (*casts)->dtype());
  }
  return &copy;
}

}  // namespace ddp::detail
