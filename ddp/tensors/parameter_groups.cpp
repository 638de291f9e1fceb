#include "ddp/tensors/parameter_groups.h"

#include <algorithm>
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
                         const std::vector<OptimizerParamGroup>& groups,
                         const std::string& option) {
  std::vector<std::string> lines;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (size_t i = 0; i < params.size(); ++i) {
      lines.push_back(
          describe("parameter", c10::str(i, " of group ", g), params[i]));
    }
  }
  number_devices(lines, parameters_of(groups));
  lines.insert(lines.begin(), option);
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

std::vector<at::Tensor> shared_of(std::vector<at::Tensor> parameters) {
  auto& ignored = all_ignored();
  const std::lock_guard<std::mutex> lock(ignored.mutex);
  parameters.erase(
      std::remove_if(parameters.begin(),
                     parameters.end(),
                     [&](const at::Tensor& parameter) {
                       return ignored.all.count(
                                  parameter.unsafeGetTensorImpl()) > 0;
                     }),
      parameters.end());
  return parameters;
}

void check_shared(const std::vector<OptimizerParamGroup>& groups) {
  auto& ignored = all_ignored();
  const std::lock_guard<std::mutex> lock(ignored.mutex);
  if (ignored.all.empty()) {
    return;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (size_t i = 0; i < params.size(); ++i) {
      TORCH_CHECK(ignored.all.count(params[i].unsafeGetTensorImpl()) == 0,
                  "Expected parameters that all ranks share for a "
                  "ZeroRedundancyOptimizer, but parameter ",
                  i,
                  " of group ",
                  g,
                  " is among the params_and_buffers_to_ignore of a "
                  "DistributedDataParallel, so it is each rank's own; step it "
                  "by another optimizer");
    }
  }
}

}  // namespace ddp::detail
