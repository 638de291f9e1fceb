#include "ddp/detail/named_tensors.h"

#include <set>

namespace ddp::detail {

std::vector<NamedParameter> unique(
    const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::set<const c10::TensorImpl*> seen;
  std::vector<NamedParameter> result;
  for (const auto& item : tensors) {
    if (item.value().defined() &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& named) {
  std::vector<at::Tensor> result;
  result.reserve(named.size());
  for (const auto& item : named) {
    result.push_back(item.tensor);
  }
  return result;
}

std::vector<TensorSpec> describe_all(
    const std::vector<NamedParameter>& parameters,
    const std::vector<NamedParameter>& buffers) {
  std::vector<TensorSpec> specs;
  for (const auto& item : parameters) {
    const char* kind = item.sparse ? "sparse parameter" : "parameter";
    specs.push_back(describe(item.name, kind, item.tensor));
  }
  for (const auto& item : buffers) {
    specs.push_back(describe(item.name, "buffer", item.tensor));
  }
  return specs;
}

}  // namespace ddp::detail
