#include "ddp/tensors/parameter_groups.h"

#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>

#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"

namespace ddp::detail {
namespace {

using torch::optim::OptimizerParamGroup;

/// Guarded by a mutex, because ranks may be threads of one process.
struct AllIgnored {
  std::mutex mutex;
  std::unordered_multiset<const c10::TensorImpl*> all;
};

AllIgnored& all_ignored() {
  static auto* ignored = new AllIgnored;  // used at exit, too
  return *ignored;
}

/// Returns the parameters with names like "3 of group 0".
std::vector<NamedParameter> name_by_place(
    const std::vector<OptimizerParamGroup>& groups) {
  std::vector<NamedParameter> named;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (size_t i = 0; i < params.size(); ++i) {
      named.push_back({c10::str(i, " of group ", g), params[i]});
    }
  }
  return named;
}

}  // namespace

std::vector<at::Tensor> parameters_of(
    const std::vector<OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

void verify_across_ranks(c10d::Backend& group,
                         c10::Device device,
                         const std::vector<OptimizerParamGroup>& groups) {
  auto lines = describe_all(name_by_place(groups), {});
  number_devices(lines, parameters_of(groups));
  verify_across_ranks(group,
                      device,
                      lines,
                      "parameters of an optimizer",
                      "make it in the same way on every rank");
}

void check_parameters(const std::vector<OptimizerParamGroup>& groups) {
  const auto params = parameters_of(groups);
  TORCH_CHECK(!params.empty(),
              "Expected at least one parameter to optimize, but got none");
  std::set<const c10::TensorImpl*> seen;
  for (const auto& param : params) {
    TORCH_CHECK(
        param.device() == params.front().device(),
        "Expected parameters on one device for a ZeroRedundancyOptimizer, but "
        "got some on ",
        params.front().device(),
        " and some on ",
        param.device());
    TORCH_CHECK(seen.insert(param.unsafeGetTensorImpl()).second,
                "Expected each parameter once, but one of shape ",
                param.sizes(),
                " comes twice; take the parameters of "
                "ddp::DistributedDataParallel, which lists shared ones once");
  }
}

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

void check_shared(const std::vector<OptimizerParamGroup>& groups) {
  auto& ignored = all_ignored();
  const std::lock_guard<std::mutex> lock(ignored.mutex);
  for (const auto& item : name_by_place(groups)) {
    TORCH_CHECK(ignored.all.count(item.tensor.unsafeGetTensorImpl()) == 0,
                "Expected parameters that all ranks share for a "
                "ZeroRedundancyOptimizer, but parameter ",
                item.name,
                " is among the params_and_buffers_to_ignore of a "
                "DistributedDataParallel, so it is each rank's own; step it "
                "by another optimizer");
  }
}

}  // namespace ddp::detail
