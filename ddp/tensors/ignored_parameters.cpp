#include "ddp/tensors/ignored_parameters.h"

#include <mutex>
#include <unordered_set>
#include <utility>

namespace ddp::detail {
namespace {

/// Guarded by a mutex, because ranks may be threads of one process.
struct AllIgnored {
  std::mutex mutex;
  std::unordered_multiset<const c10::TensorImpl*> all;
};

AllIgnored& all_ignored() {
  static auto* ignored = new AllIgnored;  // used at exit, too
  return *ignored;
}

}  // namespace

IgnoredParameters::IgnoredParameters(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  auto& ignored = all_ignored();
  const std::lock_guard<std::mutex> lock(ignored.mutex);
  for (const auto& parameter : parameters_) {
    ignored.all.insert(parameter.unsafeGetTensorImpl());
  }
}

IgnoredParameters::~IgnoredParameters() {
  auto& ignored = all_ignored();
  const std::lock_guard<std::mutex> lock(ignored.mutex);
  for (const auto& parameter : parameters_) {
    ignored.all.erase(ignored.all.find(parameter.unsafeGetTensorImpl()));
  }
}

std::vector<at::Tensor> shared_of(const std::vector<at::Tensor>& parameters) {
  auto& ignored = all_ignored();
  const std::lock_guard<std::mutex> lock(ignored.mutex);
  std::vector<at::Tensor> shared;
  for (const auto& parameter : parameters) {
    if (ignored.all.count(parameter.unsafeGetTensorImpl()) == 0) {
      shared.push_back(parameter);
    }
  }
  return shared;
}

}  // namespace ddp::detail
