#include "ddp/optim/zero_redundancy_optimizer.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include "ddp/base/partition_whole.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/state/optimizer_state.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/peers.h"
#include "ddp/job/process_group.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"
#include "ddp/tensors/ignored_parameters.h"
#include "ddp/tensors/overlap.h"
#include "ddp/tensors/shard_storage.h"

namespace ddp {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

// Entries of an optimizer's state.
constexpr const char* kStates = "state";
constexpr const char* kGroups = "param_groups";
constexpr const char* kParams = "params";

std::vector<at::Tensor> parameters_of(
    const std::vector<OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
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

void check_parameters(const std::vector<OptimizerParamGroup>& groups) {
  const auto params = parameters_of(groups);
  TORCH_CHECK(!params.empty(),
              "Expected at least one parameter to optimize, but got none");
  for (const auto& param : params) {
    TORCH_CHECK(
        param.device() == params.front().device(),
        "Expected parameters on one device for a ZeroRedundancyOptimizer, but "
        "got some on ",
        params.front().device(),
        " and some on ",
        param.device());
  }
  detail::expect_no_overlap(params);
}

void check_shared(const std::vector<OptimizerParamGroup>& groups) {
  const auto all = parameters_of(groups);
  if (detail::shared_of(all).size() == all.size()) {
    return;
  }
  for (const auto& item : name_by_place(groups)) {
    TORCH_CHECK(!detail::shared_of({item.tensor}).empty(),
                "Expected parameters that all ranks share for a "
                "ZeroRedundancyOptimizer, but parameter ",
                item.name,
                " is among the params_and_buffers_to_ignore of a "
                "DistributedDataParallel, so it is each rank's own; step it "
                "by another optimizer");
  }
}

/// Returns the device of the text collectives.
c10::Device device_of(const c10d::Backend& group,
                      const std::vector<OptimizerParamGroup>& groups) {
  if (group.getBackendName() != "nccl") {
    return c10::kCPU;
  }
  const auto params = parameters_of(groups);
  return params.empty() ? local_device() : params.front().device();
}

void copy_options(const std::vector<OptimizerParamGroup>& from,
                  std::vector<OptimizerParamGroup>& to) {
  for (size_t g = 0; g < from.size(); ++g) {
    to[g].set_options(from[g].options().clone());
  }
}

/// Returns the groups with the parameters of one rank only.
std::vector<OptimizerParamGroup> owned_by(
    int rank,
    const std::vector<OptimizerParamGroup>& groups,
    const std::vector<std::vector<int>>& owners) {
  auto owned = groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    owned[g].params().clear();
    for (size_t i = 0; i < owners[g].size(); ++i) {
      if (owners[g][i] == rank) {
        owned[g].params().push_back(groups[g].params()[i]);
      }
    }
  }
  return owned;
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    std::vector<torch::Tensor> parameters,
    const Factory& make,
    const c10::intrusive_ptr<c10d::Backend>& process_group)
    : ZeroRedundancyOptimizer(
          Groups{OptimizerParamGroup(std::move(parameters))},
          make,
          process_group) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    const Groups& groups,
    const Factory& make,
    const c10::intrusive_ptr<c10d::Backend>& process_group)
    : Optimizer(Groups{}, nullptr),
      group_(detail::known_peers(process_group, "ZeroRedundancyOptimizer")),
      elements_(size()) {
  assign_parameters(groups);
  local_ = make(owned_by(rank(), groups, owners_));
  TORCH_CHECK(
      local_ != nullptr &&
          dynamic_cast<torch::optim::LBFGS*>(local_.get()) == nullptr,
      "Expected an optimizer that steps each parameter by itself, but the "
      "factory has made ",
      local_ ? "LBFGS" : "none");
  defaults_ = local_->defaults().clone();
  for (const auto& each : groups) {
    Optimizer::add_param_group(each);
  }
}

int ZeroRedundancyOptimizer::rank() const {
  return group_ ? group_->getRank() : 0;
}

int ZeroRedundancyOptimizer::size() const {
  return group_ ? group_->getSize() : 1;
}

/// Assigns the parameters of new groups to ranks. All ranks make the same
/// checks of the same parameters, so a check after the comparison throws on all
/// ranks.
void ZeroRedundancyOptimizer::assign_parameters(const Groups& groups) {
  auto all = param_groups_;
  for (const auto& group : groups) {
    all.push_back(group);
  }
  for (const auto& param : parameters_of(all)) {
    detail::refuse_shard(param, "ZeroRedundancyOptimizer");
  }
  if (group_) {
    auto lines = detail::describe_all(name_by_place(all), {});
    detail::number_devices(lines, parameters_of(all));
    detail::verify_across_ranks(*group_,
                                device_of(*group_, all),
                                lines,
                                "parameters of an optimizer",
                                "make it in the same way on every rank");
    check_shared(all);
  }
  check_parameters(all);
  for (const auto& group : groups) {
    std::vector<int64_t> sizes;
    for (const auto& param : group.params()) {
      sizes.push_back(param.numel());
    }
    owners_.push_back(detail::partition_whole(sizes, elements_));
  }
}

void ZeroRedundancyOptimizer::add_param_group(
    const OptimizerParamGroup& group) {
  check_groups();
  assign_parameters({group});
  local_->add_param_group(owned_by(rank(), {group}, {owners_.back()}).front());
  Optimizer::add_param_group(group);
}

void ZeroRedundancyOptimizer::check_groups() const {
  bool is_same = param_groups_.size() == owners_.size();
  for (size_t g = 0; is_same && g < owners_.size(); ++g) {
    is_same = param_groups_[g].params().size() == owners_[g].size();
  }
  TORCH_CHECK(is_same,
              "Expected the parameters that have been given out to ranks, but "
              "the optimizer's groups hold others; add groups by "
              "ZeroRedundancyOptimizer::add_param_group, on every rank");
}

torch::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  check_groups();
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  if (join() != nullptr) {
    join()->announce(*this);
  } else {
    TORCH_CHECK(!group_ || !Join::is_running(),
                "Expected the ZeroRedundancyOptimizer in the Join that runs, "
                "because all ranks make its steps, but it is not there; make "
                "it Join({*model, optimizer})");
  }
  step_with_peers();
  if (join() != nullptr) {
    join()->done(*this);
  }
  return loss;
}

void ZeroRedundancyOptimizer::step_with_peers() {
  try {
    if (group_) {
      check_shared(param_groups_);
    }
    copy_options(param_groups_, local_->param_groups());
    local_->step();
  } catch (...) {
    if (group_) {  // the other ranks would wait for this one in a broadcast
      detail::abort_and_announce(*group_,
                                 detail::text_of(std::current_exception()));
    }
    throw;
  }
  if (group_) {
    std::vector<std::vector<at::Tensor>> owned(size());
    for (size_t g = 0; g < owners_.size(); ++g) {
      for (size_t i = 0; i < owners_[g].size(); ++i) {
        owned[owners_[g][i]].push_back(param_groups_[g].params()[i]);
      }
    }
    for (int owner = 0; owner < size(); ++owner) {
      detail::broadcast_from(owner, *group_, owned[owner]);
    }
  }
}

c10::Device ZeroRedundancyOptimizer::join_device() const {
  return group_ ? device_of(*group_, param_groups_) : c10::kCPU;
}

/// A rank numbers its own parameters from 0 on.
c10::IValue ZeroRedundancyOptimizer::state_dict() const {
  check_groups();
  copy_options(param_groups_, local_->param_groups());
  const auto own = detail::optimizer_to_value(*local_);
  const detail::DictReader mine(own, "optimizer");
  const auto bytes = detail::to_bytes(mine.get(kStates));
  auto texts = group_ ? detail::gather_text(*group_,
                                            device_of(*group_, param_groups_),
                                            bytes,
                                            "the optimizer's state")
                      : std::vector{bytes};
  if (rank() != 0) {
    return {};
  }
  std::vector<c10::Dict<c10::IValue, c10::IValue>> parts;
  for (auto& text : texts) {  // frees each text before the next one is read
    parts.push_back(
        detail::from_bytes(std::exchange(text, "")).toGenericDict());
  }
  auto states = detail::new_dict().toGenericDict();
  auto groups = detail::new_list().toList();
  std::vector<int64_t> next(parts.size());  // number of each rank's parameter
  int64_t id = 0;
  for (size_t g = 0; g < owners_.size(); ++g) {
    auto ids = detail::new_list().toList();
    for (const int owner : owners_[g]) {
      const auto found = parts[owner].find(next[owner]++);
      if (found != parts[owner].end()) {
        states.insert(id, found->value());
      }
      ids.push_back(id++);
    }
    auto group = mine.list(kGroups)[g].toGenericDict();
    group.insert_or_assign(kParams, ids);
    groups.push_back(group);
  }
  auto whole = detail::new_dict().toGenericDict();
  whole.insert(kStates, states);
  whole.insert(kGroups, groups);
  return whole;
}

/// Returns the state of this rank's parameters from a whole state.
c10::IValue ZeroRedundancyOptimizer::part_of(const c10::IValue& whole) const {
  check_groups();
  const detail::DictReader saved(whole, "optimizer");
  const auto saved_groups = saved.list(kGroups);
  auto groups = detail::new_list().toList();
  for (size_t g = 0; g < saved_groups.size(); ++g) {
    const detail::DictReader group(
        saved_groups[g], c10::str("optimizer[\"param_groups\"][", g, "]"));
    const auto ids = group.list(kParams);
    auto own_ids = detail::new_list().toList();
    if (g < owners_.size()) {
      TORCH_CHECK(ids.size() == owners_[g].size(),
                  "its optimizer has a group of ",
                  ids.size(),
                  " parameters, but this one's has ",
                  owners_[g].size());
      for (size_t i = 0; i < ids.size(); ++i) {
        if (owners_[g][i] == rank()) {
          own_ids.push_back(ids[i]);
        }
      }
    }
    auto own = group.entries().copy();
    own.insert_or_assign(kParams, own_ids);
    groups.push_back(own);
  }
  auto part = saved.entries().copy();
  part.insert_or_assign(kGroups, groups);
  return part;
}

void ZeroRedundancyOptimizer::check_state_dict(const c10::IValue& state) const {
  detail::check_optimizer(*local_, part_of(state));
}

void ZeroRedundancyOptimizer::load_state_dict(const c10::IValue& state) {
  detail::load_optimizer(*local_, part_of(state));
  copy_options(local_->param_groups(), param_groups_);
}

void ZeroRedundancyOptimizer::save(
    torch::serialize::OutputArchive& /*archive*/) const {
  TORCH_CHECK(false,
              "Expected the whole state to save, but each rank of a "
              "ZeroRedundancyOptimizer has a part; save it by "
              "ddp::Checkpoint");
}

void ZeroRedundancyOptimizer::load(
    torch::serialize::InputArchive& /*archive*/) {
  TORCH_CHECK(false,
              "Expected an optimizer over all parameters to load into, but "
              "each rank of a ZeroRedundancyOptimizer has a part; load it by "
              "ddp::Checkpoint");
}

}  // namespace ddp
