#include "ddp/optim/zero_redundancy_optimizer.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/tensor_flatten.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include "ddp/base/partition_whole.h"
#include "ddp/checkpoint/state/optimizer_state.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/peers.h"
#include "ddp/job/process_group.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/alias_without_view.h"
#include "ddp/tensors/ignored_parameters.h"

namespace ddp {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

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

std::string bytes_of(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}

void set_from_bytes(Optimizer& optimizer,
                    const std::string& bytes,
                    c10::Device device) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream, device);
  optimizer.load(archive);
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

void* impl_of(const at::Tensor& param) {
  return param.unsafeGetTensorImpl();
}

// From this size on, copying into a shared message costs more than a message of
// its own.
constexpr size_t kLargeBytes = size_t{1} << 20;

/// One large parameter, or the small parameters of one owner and dtype.
struct OwnerMessage {
  int owner;
  std::vector<at::Tensor> params;
};

bool is_large(const at::Tensor& param) {
  return param.nbytes() >= kLargeBytes && param.is_non_overlapping_and_dense();
}

/// Equal arguments give equal messages on all ranks.
std::vector<OwnerMessage> group_into_messages(
    const std::vector<at::Tensor>& params, const std::vector<int>& owners) {
  std::vector<OwnerMessage> messages;
  std::map<std::pair<int, c10::ScalarType>, size_t> index_of_small;
  for (size_t i = 0; i < params.size(); ++i) {
    if (is_large(params[i])) {
      messages.push_back({owners[i], {params[i]}});
      continue;
    }
    const auto [found, is_new] = index_of_small.try_emplace(
        {owners[i], params[i].scalar_type()}, messages.size());
    if (is_new) {
      messages.push_back({owners[i], {}});
    }
    messages[found->second].params.push_back(params[i]);
  }
  return messages;
}

/// Returns the tensor to broadcast: the memory of a large parameter, or a copy
/// of several small ones.
at::Tensor payload_of(const OwnerMessage& message, bool is_owner) {
  const at::Tensor& first = message.params.front();
  if (is_large(first)) {
    return detail::alias_without_view(
        first.variable_data(), first.storage_offset(), {first.numel()}, {1});
  }
  if (is_owner) {
    return torch::utils::flatten_dense_tensors(message.params);
  }
  int64_t numel = 0;
  for (const auto& param : message.params) {
    numel += param.numel();
  }
  return at::empty({numel}, first.options().requires_grad(false));
}

/// Copies each parameter from its owner, rank `owners[i]` for `params[i]`, to
/// all ranks. A large parameter is a message of its own, from and to its own
/// memory; the small ones of one owner and dtype are one message. All messages
/// are in flight at once. Does not count as a modification for autograd.
/// Collective.
/// @param params  on one device; shapes, strides and dtypes are equal on all
///   ranks.
/// @throws c10::Error if a rank has left or the group's time-out is over.
void broadcast_from_owners(c10d::Backend& group,
                           const std::vector<at::Tensor>& params,
                           const std::vector<int>& owners) {
  const c10::NoGradGuard no_grad;
  const auto messages = group_into_messages(params, owners);
  std::vector<at::Tensor> payloads;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const auto& message : messages) {
    payloads.push_back(payload_of(message, message.owner == group.getRank()));
    c10d::BroadcastOptions options;
    options.rootRank = message.owner;
    std::vector<at::Tensor> sent{payloads.back()};
    works.push_back(group.broadcast(sent, options));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const OwnerMessage& message = messages[i];
    detail::wait(works[i],
                 group,
                 "broadcast of the parameters that rank " +
                     std::to_string(message.owner) + " has stepped");
    if (message.owner != group.getRank() && !is_large(message.params.front())) {
      detail::copy_pieces(payloads[i], message.params);
    }
  }
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    std::vector<torch::Tensor> parameters,
    Factory make,
    const c10::intrusive_ptr<c10d::Backend>& process_group)
    : ZeroRedundancyOptimizer(
          Groups{OptimizerParamGroup(std::move(parameters))},
          std::move(make),
          process_group) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    const Groups& groups,
    Factory make,
    const c10::intrusive_ptr<c10d::Backend>& process_group)
    : Optimizer(Groups{}, nullptr),
      make_(std::move(make)),
      group_(detail::known_peers(process_group, "ZeroRedundancyOptimizer")),
      elements_(size()) {
  assign_parameters(groups);
  local_ = make_(owned_by(rank(), groups, owners_));
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
  } else if (group_) {
    Join::step_outside("ZeroRedundancyOptimizer", this);
  }
  step_with_peers();
  if (join() != nullptr) {
    join()->done(*this);
  }
  return loss;
}

/// Returns the result of `function`. If that throws, the group is aborted,
/// because the other ranks would wait for this rank in a broadcast.
template <class Function>
auto ZeroRedundancyOptimizer::abort_on_error(const Function& function) const {
  try {
    return function();
  } catch (...) {
    if (group_) {
      detail::abort_and_announce(*group_,
                                 detail::text_of(std::current_exception()));
    }
    throw;
  }
}

void ZeroRedundancyOptimizer::step_with_peers() {
  abort_on_error([&] {
    if (group_) {
      check_shared(param_groups_);
    }
    copy_options(param_groups_, local_->param_groups());
    local_->step();
  });
  if (group_) {
    std::vector<int> owners;
    for (const auto& of_group : owners_) {
      owners.insert(owners.end(), of_group.begin(), of_group.end());
    }
    broadcast_from_owners(*group_, parameters_of(param_groups_), owners);
  }
}

c10::Device ZeroRedundancyOptimizer::join_device() const {
  return group_ ? device_of(*group_, param_groups_) : c10::kCPU;
}

std::unique_ptr<Optimizer> ZeroRedundancyOptimizer::make_whole() const {
  return make_again(param_groups_);
}

/// Makes an optimizer with the options that the groups have now. From LibTorch
/// 2.15 on, a constructor replaces each option that equals its class's default
/// by the factory's.
std::unique_ptr<Optimizer> ZeroRedundancyOptimizer::make_again(
    const Groups& groups) const {
  auto made = make_(groups);
  copy_options(groups, made->param_groups());
  return made;
}

std::unique_ptr<Optimizer> ZeroRedundancyOptimizer::consolidate(int to) const {
  TORCH_CHECK(to >= 0 && to < size(),
              "Expected a rank from 0 to ",
              size() - 1,
              " to consolidate on, but got ",
              to);
  check_groups();
  return abort_on_error([&] { return gather_state(to); });
}

/// Returns the whole state on rank `to`, null on the others.
std::unique_ptr<Optimizer> ZeroRedundancyOptimizer::gather_state(int to) const {
  auto whole = rank() == to ? make_whole() : nullptr;
  if (whole) {
    whole->state().clear();  // Adagrad's constructor creates state
  }
  for (int owner = 0; owner < size(); ++owner) {
    auto bytes = owner == rank() ? bytes_of(*local_) : "";
    if (group_) {
      bytes = detail::broadcast_text(
          *group_, device_of(*group_, param_groups_), bytes, owner);
    }
    if (whole) {
      const auto part = make_again(owned_by(owner, param_groups_, owners_));
      set_from_bytes(*part, bytes, c10::kCPU);
      for (auto& [param, state] : part->state()) {
        whole->state()[param] = std::move(state);
      }
    }
  }
  TORCH_CHECK(!whole || !whole->state().empty() || local_->state().empty(),
              "Expected an optimizer whose save() writes its state, but it "
              "has written none");
  return whole;
}

void ZeroRedundancyOptimizer::take(const Optimizer& whole) {
  check_groups();
  const auto& groups = whole.param_groups();
  const auto& given = whole.defaults();
  const auto& own = local_->defaults();
  TORCH_CHECK(typeid(given) == typeid(own),
              "Expected an optimizer of the kind that the factory makes, but "
              "got one with other options");
  TORCH_CHECK(groups.size() == owners_.size(),
              "Expected an optimizer with ",
              owners_.size(),
              " groups, but got one with ",
              groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    TORCH_CHECK(groups[g].params().size() == owners_[g].size(),
                "Expected ",
                owners_[g].size(),
                " parameters in group ",
                g,
                ", but got ",
                groups[g].params().size());
  }
  const auto mine = owned_by(rank(), param_groups_, owners_);
  const auto part = make_again(mine);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < owners_[g].size(); ++i) {
      const auto found = whole.state().find(impl_of(groups[g].params()[i]));
      if (owners_[g][i] == rank() && found != whole.state().end()) {
        part->state()[impl_of(param_groups_[g].params()[i])] =
            found->second->clone();
      }
    }
  }
  // Copies the state through its serialized form, because only the optimizer
  // class knows which tensors its state has and how to move them to the device.
  auto local = make_again(mine);
  const auto device = parameters_of(param_groups_).front().device();
  set_from_bytes(*local, bytes_of(*part), device);
  copy_options(groups, param_groups_);
  local_ = std::move(local);
}

c10::IValue ZeroRedundancyOptimizer::state_dict() const {
  const auto whole = consolidate();
  return whole ? detail::optimizer_to_value(*whole) : c10::IValue();
}

void ZeroRedundancyOptimizer::check_state_dict(const c10::IValue& state) const {
  detail::check_optimizer(*make_whole(), state);
}

void ZeroRedundancyOptimizer::load_state_dict(const c10::IValue& state) {
  const auto whole = make_whole();
  detail::load_optimizer(*whole, state);
  take(*whole);
}

void ZeroRedundancyOptimizer::save(
    torch::serialize::OutputArchive& /*archive*/) const {
  TORCH_CHECK(false,
              "Expected the whole state to save, but each rank of a "
              "ZeroRedundancyOptimizer has a part; save what consolidate() "
              "gives, or by ddp::Checkpoint");
}

void ZeroRedundancyOptimizer::load(
    torch::serialize::InputArchive& /*archive*/) {
  TORCH_CHECK(false,
              "Expected an optimizer over all parameters to load into, but "
              "each rank of a ZeroRedundancyOptimizer has a part; load into "
              "what make_whole() gives and take() that, or use "
              "ddp::Checkpoint");
}

}  // namespace ddp
