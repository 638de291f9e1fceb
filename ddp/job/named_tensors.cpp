#include "ddp/job/named_tensors.h"

#include <c10/util/Exception.h>

#include "ddp/base/text/nearest.h"

namespace ddp::detail {

std::vector<NamedParameter> unique(const NamedTensors& tensors,
                                   const std::set<std::string>& ignored) {
  std::set<const c10::TensorImpl*> seen;
  std::vector<NamedParameter> result;
  for (const auto& item : tensors) {
    if (item.value().defined() && ignored.count(item.key()) == 0 &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

void check_ignored(const std::set<std::string>& names,
                   const NamedTensors& parameters,
                   const NamedTensors& buffers) {
  for (const auto& name : names) {
    if (parameters.contains(name) || buffers.contains(name)) {
      continue;
    }
    auto known = parameters.keys();
    const auto others = buffers.keys();
    known.insert(known.end(), others.begin(), others.end());
    TORCH_CHECK(false,
                "Expected params_and_buffers_to_ignore to name parameters and "
                "buffers of the module that is wrapped, but got \"",
                name,
                "\"",
                did_you_mean(name, known),
                "; take the names of its named_parameters() and "
                "named_buffers()");
  }
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
