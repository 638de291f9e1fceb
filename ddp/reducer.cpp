#include "ddp/reducer.h"

#include <numeric>

#include <ATen/ops/clone.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "ddp/detail/reducer/missing_gradients.h"
#include "ddp/detail/wait.h"

namespace ddp {
namespace {

int64_t to_bytes(double mebibytes) {
  return static_cast<int64_t>(mebibytes * 1024 * 1024);
}

detail::BucketCaps caps_of(const DistributedDataParallelOptions& options) {
  TORCH_CHECK(
      options.bucket_cap_mb() > 0 && options.first_bucket_cap_mb() > 0,
      "Expected bucket_cap_mb and first_bucket_cap_mb to be positive, but got ",
      options.bucket_cap_mb(),
      " and ",
      options.first_bucket_cap_mb());
  return {to_bytes(options.first_bucket_cap_mb()),
          to_bytes(options.bucket_cap_mb())};
}

std::vector<detail::Slot> slots_of(std::vector<NamedParameter> parameters) {
  TORCH_CHECK(!parameters.empty(),
              "Expected at least one parameter that requires a gradient, but "
              "got none; without one the module needs no wrapper");
  std::vector<detail::Slot> slots;
  slots.reserve(parameters.size());
  for (auto& parameter : parameters) {
    TORCH_CHECK(parameter.tensor.requires_grad() && parameter.tensor.is_leaf(),
                "Expected parameter ",
                parameter.name,
                " to be a leaf that requires a gradient, but it is not");
    detail::Slot slot;
    slot.name = std::move(parameter.name);
    slot.param = std::move(parameter.tensor);
    slot.sparse = parameter.sparse;
    slots.push_back(std::move(slot));
  }
  return slots;
}

std::vector<at::Tensor> tensors_of(const std::vector<detail::Slot>& slots) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(slots.size());
  for (const auto& slot : slots) {
    tensors.push_back(slot.param);
  }
  return tensors;
}

std::vector<size_t> all_of(const std::vector<detail::Slot>& slots) {
  std::vector<size_t> all(slots.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

void refuse_sparse_over_nccl(const std::vector<detail::Slot>& slots,
                             const c10d::Backend& group) {
  if (group.getBackendName() != "nccl") {
    return;
  }
  for (const auto& slot : slots) {
    TORCH_CHECK(!slot.sparse,
                "Expected dense gradients with NCCL, which cannot all-reduce "
                "sparse ones, but got the sparse parameter ",
                slot.name,
                "; make its layer with sparse(false), or use Gloo");
  }
}

bool in_backward_pass() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace

Reducer::Reducer(std::vector<NamedParameter> parameters,
                 c10::intrusive_ptr<c10d::Backend> group,
                 const DistributedDataParallelOptions& options)
    : group_(std::move(group)),
      options_(options),
      memory_(slots_of(std::move(parameters)),
              caps_of(options),
              1.0 / group_->getSize()),
      flag_(std::in_place, memory_.spare_element()) {
  refuse_sparse_over_nccl(memory_.slots(), *group_);
  if (!options_.find_unused_parameters()) {
    order_.emplace();
    order_->reserve(memory_.slots().size());
  }
  hooks_ = std::make_unique<detail::GradHooks>(
      tensors_of(memory_.slots()),
      [this](size_t index) { on_grad_ready(index); });
}

detail::BucketPlan Reducer::plan() const {
  return memory_.plan();
}

void Reducer::arm() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::reducing) {
    TORCH_CHECK(
        in_backward_pass(),
        "Expected the backward pass before this forward to have finished, but "
        "an exception left it on rank ",
        group_->getRank(),
        ", so the ranks are no longer in step. Start again from a checkpoint, "
        "or make a new DistributedDataParallel on every rank");
    return;
  }
  phase_ = Phase::armed;
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) {
    return;
  }
  output.register_hook(
      [weak = std::weak_ptr<Reducer*>(self_)](const at::Tensor& /*grad*/) {
        if (const auto self = weak.lock()) {
          const std::lock_guard lock((*self)->mutex_);
          (*self)->begin();
        }
      });
}

void Reducer::begin() {
  if (phase_ == Phase::reducing) {
    return;
  }
  if (c10::GradMode::is_enabled()) {
    TORCH_WARN_ONCE(
        "backward() with create_graph: gradients of gradients are not averaged "
        "over ranks");
  }
  if (!options_.gradient_as_bucket_view() && memory_.is_lent()) {
    memory_.renew();
    flag_.emplace(memory_.spare_element());
  }
  phase_ = Phase::reducing;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this] { finalize(); });
}

void Reducer::on_grad_ready(size_t index) {
  const std::lock_guard lock(mutex_);
  detail::Slot& slot = memory_.slots()[index];
  if (phase_ == Phase::idle) {
    slot.accumulated = true;
    return;
  }
  begin();
  TORCH_CHECK(!slot.ready,
              "Expected one gradient for parameter ",
              slot.name,
              " in a backward pass, but got a second one. Backward passes "
              "inside the pass (checkpointing) must not share parameters; sum "
              "the losses and call backward() once");
  slot.ready = true;
  if (order_) {
    order_->push_back(index);
  }
  c10::NoGradGuard no_grad;
  if (memory_.add(index)) {
    launch_full_buckets();
  }
}

void Reducer::launch_full_buckets() {
  if (order_) {
    return;  // until the buckets are rebuilt
  }
  auto& buckets = memory_.buckets();
  while (next_ < buckets.size() && buckets[next_].pending == 0) {
    std::vector<at::Tensor> tensors{buckets[next_].flat};
    buckets[next_].work = group_->allreduce(tensors);
    ++next_;
  }
}

void Reducer::finalize() {
  const std::lock_guard lock(mutex_);
  const auto guard = c10::make_scope_exit([this] { reset(); });
  c10::NoGradGuard no_grad;
  const auto absent = missing();
  complete(absent);
  if (order_) {
    rebuild();
    launch_full_buckets();
  }
  wait_all();
  if (options_.find_unused_parameters()) {
    memory_.hand_out(used_by_some_rank(absent));
    return;
  }
  if (flag_->raised() || !absent.empty()) {
    flag_->clear();
    report(absent);
  }
  memory_.hand_out(all_of(memory_.slots()));
}

std::vector<size_t> Reducer::missing() const {
  std::vector<size_t> result;
  if (next_ == memory_.buckets().size()) {
    return result;
  }
  const auto& slots = memory_.slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].ready) {
      result.push_back(i);
    }
  }
  return result;
}

/// Launches what is left, so that no other rank waits for this one.
void Reducer::complete(const std::vector<size_t>& absent) {
  if (absent.empty()) {
    return;
  }
  if (!options_.find_unused_parameters()) {
    flag_->raise();
  }
  for (const size_t index : absent) {
    if (order_) {
      order_->push_back(index);  // as long as on the other ranks
    }
    const detail::Slot& slot = memory_.slots()[index];
    at::Tensor& grad = slot.param.mutable_grad();
    if (grad.defined() && grad.is_same(slot.view)) {
      grad = grad.clone();  // stays as it is unless a rank has used it
    }
    memory_.add(index);
  }
  launch_full_buckets();
}

/// Moves the gradients of the first pass, all of which are in buckets by now,
/// into buckets of the order in which rank 0 met them.
void Reducer::rebuild() {
  const size_t count = order_->size();
  std::vector<int64_t> order(order_->begin(), order_->end());
  order_.reset();
  const auto device = memory_.slots().front().param.device();
  std::vector<at::Tensor> shared{at::tensor(order, at::kLong).to(device)};
  detail::wait(group_->broadcast(shared), *group_, "broadcast of the order");
  shared[0] = shared[0].cpu();
  const auto* data = shared[0].const_data_ptr<int64_t>();
  if (!memory_.place({data, data + count})) {
    return;
  }
  flag_.emplace(memory_.spare_element());
  for (auto& bucket : memory_.buckets()) {
    bucket.pending = 0;
  }
}

void Reducer::wait_all() {
  const auto& buckets = memory_.buckets();
  for (size_t i = 0; i < buckets.size(); ++i) {
    detail::wait(buckets[i].work,
                 *group_,
                 "all-reduce of gradient bucket " + std::to_string(i + 1) +
                     " of " + std::to_string(buckets.size()));
  }
}

void Reducer::report(const std::vector<size_t>& absent) {
  std::string mine;
  for (const size_t index : absent) {
    mine += (mine.empty() ? "" : ", ") + memory_.slots()[index].name;
  }
  const auto device = memory_.spare_element().device();
  TORCH_CHECK(false,
              detail::missing_gradients_error(
                  detail::exchange_missing(*group_, device, mine)));
}

/// The parameters that at least one rank used in this pass, or in passes that
/// were not reduced before it.
std::vector<size_t> Reducer::used_by_some_rank(
    const std::vector<size_t>& absent) {
  const auto& slots = memory_.slots();
  std::vector<bool> used(slots.size(), true);
  for (const size_t index : absent) {
    const detail::Slot& slot = slots[index];
    used[index] = slot.accumulated && slot.param.grad().defined();
  }
  used =
      detail::all_reduce_used(*group_, memory_.spare_element().device(), used);
  std::vector<size_t> result;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) {
      result.push_back(i);
    }
  }
  return result;
}

void Reducer::reset() {
  memory_.reset();
  next_ = 0;
  phase_ = Phase::idle;
}

}  // namespace ddp
