#include "ddp/nn/script_module.h"

#include <memory>

namespace ddp {
namespace {

/// A submodule of the script; holds its name and its tensors.
struct ScriptPart : torch::nn::Module {
  ScriptPart() : torch::nn::Module("ScriptModule") {}
};

/// Registers tensors and submodules. Submodules are needed because LibTorch
/// reserves names with dots for the tensors of submodules.
void adopt(torch::nn::Module& module, const torch::jit::Module& script) {
  for (const auto& item : script.named_parameters(/*recurse=*/false)) {
    module.register_parameter(
        item.name, item.value, item.value.requires_grad());
  }
  for (const auto& item : script.named_buffers(/*recurse=*/false)) {
    module.register_buffer(item.name, item.value);
  }
  for (const auto& item : script.named_children()) {
    auto part = std::make_shared<ScriptPart>();
    adopt(*part, item.value);
    module.register_module(item.name, std::move(part));
  }
}

void collect_tensors(const c10::IValue& value,
                     std::vector<at::Tensor>& tensors) {
  const auto collect_all = [&tensors](const auto& values) {
    for (const c10::IValue& element : values) {
      collect_tensors(element, tensors);
    }
  };
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    collect_all(value.toTupleRef().elements());
  } else if (value.isList()) {
    collect_all(value.toListRef());
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      collect_tensors(entry.value(), tensors);
    }
  } else if (value.isObject()) {
    collect_all(value.toObjectRef().slots());
  }
}

}  // namespace

ScriptModuleImpl::ScriptModuleImpl(torch::jit::Module script)
    : torch::nn::Module("ScriptModule"), script_(std::move(script)) {
  adopt(*this, script_);
}

c10::IValue ScriptModuleImpl::forward(std::vector<c10::IValue> inputs,
                                      const torch::jit::Kwargs& kwargs) {
  return script_.forward(std::move(inputs), kwargs);
}

void ScriptModuleImpl::train(bool on) {
  torch::nn::Module::train(on);
  script_.train(on);
}

void ScriptModuleImpl::pretty_print(std::ostream& stream) const {
  stream << "ddp::ScriptModule(" << script_.type()->name()->qualifiedName()
         << ")";
}

std::vector<at::Tensor> detail::tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  collect_tensors(value, tensors);
  return tensors;
}

}  // namespace ddp
