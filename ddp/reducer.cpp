#include "ddp/reducer.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "ddp/detail/exchange.h"
#include "ddp/detail/wait.h"

namespace ddp {
namespace {

int64_t to_bytes(double mebibytes) {
  return static_cast<int64_t>(mebibytes * 1024 * 1024);
}

detail::BucketCaps caps_of(const DistributedDataParallelOptions& options) {
  return {to_bytes(options.first_bucket_cap_mb()),
          to_bytes(options.bucket_cap_mb())};
}

std::vector<detail::GradientSpec> specs_of(
    const std::vector<detail::Slot>& slots) {
  std::vector<detail::GradientSpec> specs;
  specs.reserve(slots.size());
  for (const auto& slot : slots) {
    specs.push_back(
        {slot.param.numel(), slot.param.scalar_type(), slot.param.device()});
  }
  return specs;
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
      copy_(1.0 / group_->getSize()) {
  TORCH_CHECK(!parameters.empty(),
              "Expected at least one parameter that requires a gradient, but "
              "got none; without one the module needs no wrapper");
  TORCH_CHECK(
      options_.bucket_cap_mb() > 0 && options_.first_bucket_cap_mb() > 0,
      "Expected bucket_cap_mb and first_bucket_cap_mb to be positive, but got ",
      options_.bucket_cap_mb(),
      " and ",
      options_.first_bucket_cap_mb());
  std::vector<at::Tensor> tensors;
  for (auto& parameter : parameters) {
    TORCH_CHECK(parameter.tensor.requires_grad() && parameter.tensor.is_leaf(),
                "Expected parameter ",
                parameter.name,
                " to be a leaf that requires a gradient, but it is not");
    tensors.push_back(parameter.tensor);
    detail::Slot slot;
    slot.name = std::move(parameter.name);
    slot.param = std::move(parameter.tensor);
    slots_.push_back(std::move(slot));
  }
  // The backward pass meets the last layers first.
  std::vector<size_t> reverse(slots_.size());
  std::iota(reverse.rbegin(), reverse.rend(), size_t{0});
  build(detail::plan_buckets(specs_of(slots_), reverse, caps_of(options_)));
  if (!options_.find_unused_parameters()) {
    order_.emplace();
    order_->reserve(slots_.size());
  }
  hooks_ = std::make_unique<detail::GradHooks>(
      tensors, [this](size_t index) { on_grad_ready(index); });
}

detail::BucketPlan Reducer::plan() const {
  detail::BucketPlan plan;
  for (const auto& bucket : buckets_) {
    plan.push_back(bucket.members);
  }
  return plan;
}

void Reducer::build(const detail::BucketPlan& plan) {
  std::vector<detail::Bucket> buckets;
  for (size_t i = 0; i < plan.size(); ++i) {
    const bool is_last = i + 1 == plan.size();
    buckets.push_back(
        detail::make_bucket(slots_, plan[i], i, /*extra=*/is_last ? 1 : 0));
  }
  buckets_ = std::move(buckets);
  flag_.emplace(buckets_.back().flat);
  for (auto& bucket : buckets_) {
    bucket.owners = bucket.flat.storage().use_count();
  }
}

at::Tensor Reducer::flag_element() const {
  const at::Tensor& flat = buckets_.back().flat;
  return flat.narrow(0, flat.numel() - 1, 1);
}

/// Makes the buckets anew and moves what is in them.
void Reducer::move_to(const detail::BucketPlan& plan) {
  c10::NoGradGuard no_grad;
  const auto old_flag = flag_element();
  std::vector<at::Tensor> old_views;
  for (const auto& slot : slots_) {
    old_views.push_back(slot.view);
  }
  build(plan);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].view.copy_(old_views[i]);
    at::Tensor& grad = slots_[i].param.mutable_grad();
    if (grad.is_same(old_views[i])) {
      grad = slots_[i].view;
    }
  }
  flag_element().copy_(old_flag);
}

/// Moves the gradients of the first pass, all of which are in buckets by now,
/// into buckets of the order in which rank 0 met them.
void Reducer::rebuild() {
  std::vector<int64_t> order(order_->begin(), order_->end());
  order_.reset();
  std::vector<at::Tensor> shared{
      at::tensor(order, at::kLong).to(slots_.front().param.device())};
  detail::wait(group_->broadcast(shared), *group_, "broadcast of the order");
  shared[0] = shared[0].cpu();
  const auto* data = shared[0].const_data_ptr<int64_t>();
  const auto next = detail::plan_buckets(
      specs_of(slots_), {data, data + slots_.size()}, caps_of(options_));
  if (next == plan()) {
    return;
  }
  move_to(next);
  for (auto& bucket : buckets_) {
    bucket.pending = 0;
  }
}

/// Whether somebody still holds a gradient that `.grad` has let go, or an alias
/// of one: the next pass would overwrite it.
bool Reducer::is_lent() const {
  const auto has_alias = [](const detail::Bucket& bucket) {
    return bucket.flat.storage().use_count() > bucket.owners;
  };
  const auto has_holder = [](const detail::Slot& slot) {
    return slot.view.use_count() > 1 && !slot.param.grad().is_same(slot.view);
  };
  return std::any_of(buckets_.begin(), buckets_.end(), has_alias) ||
         std::any_of(slots_.begin(), slots_.end(), has_holder);
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
  if (!options_.gradient_as_bucket_view() && is_lent()) {
    move_to(plan());
  }
  phase_ = Phase::reducing;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this] { finalize(); });
}

void Reducer::on_grad_ready(size_t index) {
  const std::lock_guard lock(mutex_);
  detail::Slot& slot = slots_[index];
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
  detail::Bucket& bucket = buckets_[slot.bucket];
  c10::NoGradGuard no_grad;
  // On the CPU the gradient is still in the cache; on a GPU one kernel for the
  // whole bucket beats a launch for each gradient.
  const bool at_arrival = bucket.flat.is_cpu();
  if (at_arrival) {
    take(slot);
  }
  if (--bucket.pending == 0) {
    if (!at_arrival) {
      take_all(bucket);
    }
    launch_full_buckets();
  }
}

void Reducer::check_gradient(const detail::Slot& slot) const {
  const at::Tensor& grad = slot.param.grad();
  TORCH_CHECK(!grad.defined() || grad.layout() == c10::kStrided,
              "Expected a dense gradient for parameter ",
              slot.name,
              ", but got a sparse one; make the layer with sparse(false)");
  TORCH_CHECK(!grad.defined() || grad.scalar_type() == slot.param.scalar_type(),
              "Expected a gradient of type ",
              slot.param.scalar_type(),
              " for parameter ",
              slot.name,
              ", but got ",
              grad.scalar_type());
}

void Reducer::take(detail::Slot& slot) {
  check_gradient(slot);
  at::Tensor& grad = slot.param.mutable_grad();
  if (grad.defined()) {
    copy_.scaled(slot.view, grad);
  } else {
    slot.view.zero_();
  }
  if (slot.ready) {
    grad = slot.view;
  }
}

void Reducer::take_all(detail::Bucket& bucket) {
  std::vector<at::Tensor> views;
  std::vector<at::Tensor> grads;
  for (const size_t member : bucket.members) {
    detail::Slot& slot = slots_[member];
    check_gradient(slot);
    at::Tensor& grad = slot.param.mutable_grad();
    if (!grad.defined()) {
      slot.view.zero_();
    } else if (!grad.is_same(slot.view)) {
      views.push_back(slot.view);
      grads.push_back(grad);
    }
    if (slot.ready) {
      grad = slot.view;
    }
  }
  if (!views.empty()) {
    at::_foreach_copy_(views, grads);
  }
  bucket.flat.mul_(copy_.factor());
}

void Reducer::launch_full_buckets() {
  if (order_) {
    return;  // until the buckets are rebuilt
  }
  while (next_ < buckets_.size() && buckets_[next_].pending == 0) {
    std::vector<at::Tensor> tensors{buckets_[next_].flat};
    buckets_[next_].work = group_->allreduce(tensors);
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
    hand_out(reduce_used_map(absent));
    return;
  }
  if (flag_->raised() || !absent.empty()) {
    flag_->clear();
    report(absent);
  }
  std::vector<size_t> all(slots_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  hand_out(all);
}

std::vector<size_t> Reducer::missing() const {
  std::vector<size_t> result;
  if (next_ == buckets_.size()) {
    return result;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].ready) {
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
    detail::Slot& slot = slots_[index];
    at::Tensor& grad = slot.param.mutable_grad();
    if (grad.is_same(slot.view)) {
      grad = grad.clone();  // stays as it is unless a rank has used it
    }
    detail::Bucket& bucket = buckets_[slot.bucket];
    if (bucket.flat.is_cpu()) {
      take(slot);
    }
    if (--bucket.pending == 0 && !bucket.flat.is_cpu()) {
      take_all(bucket);
    }
  }
  launch_full_buckets();
}

void Reducer::wait_all() {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    detail::wait(buckets_[i].work,
                 *group_,
                 "all-reduce of gradient bucket " + std::to_string(i + 1) +
                     " of " + std::to_string(buckets_.size()));
  }
}

void Reducer::report(const std::vector<size_t>& absent) {
  std::string mine;
  for (const size_t index : absent) {
    mine += (mine.empty() ? "" : ", ") + slots_[index].name;
  }
  // On the CPU all ranks know of the flag now and can tell each other; on a
  // GPU they learn of it at different times.
  const auto device = buckets_.back().flat.device();
  std::vector<std::string> lists(group_->getSize());
  if (device.is_cpu()) {
    lists = detail::all_gather_text(*group_, device, mine);
  } else {
    lists[group_->getRank()] = mine;
  }
  std::ostringstream who;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    if (!lists[rank].empty()) {
      who << " on rank " << rank << ": " << lists[rank] << ";";
    }
  }
  TORCH_CHECK(false,
              "Expected every parameter to get a gradient in this backward "
              "pass, but these got none:",
              who.tellp() > 0 ? who.str() : " (see the other ranks' errors);",
              " let them take part in the loss, freeze them with "
              "requires_grad_(false), or set find_unused_parameters(true)");
}

/// The parameters that at least one rank used in this pass, or in passes that
/// were not reduced before it.
std::vector<size_t> Reducer::reduce_used_map(
    const std::vector<size_t>& absent) {
  auto used = at::ones({static_cast<int64_t>(slots_.size())}, at::kInt);
  for (const size_t index : absent) {
    const detail::Slot& slot = slots_[index];
    if (!slot.accumulated || !slot.param.grad().defined()) {
      used[static_cast<int64_t>(index)] = 0;
    }
  }
  std::vector<at::Tensor> map{used.to(buckets_.back().flat.device())};
  detail::wait(group_->allreduce(map), *group_, "all-reduce of the used map");
  const auto ranks = map[0].cpu();
  const auto* counts = ranks.const_data_ptr<int32_t>();
  std::vector<size_t> result;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (counts[i] > 0) {
      result.push_back(i);
    }
  }
  return result;
}

/// `.grad` becomes the average.
void Reducer::hand_out(const std::vector<size_t>& indices) {
  for (const size_t index : indices) {
    slots_[index].param.mutable_grad() = slots_[index].view;
  }
}

void Reducer::reset() {
  for (auto& slot : slots_) {
    slot.ready = false;
    slot.accumulated = false;
  }
  for (auto& bucket : buckets_) {
    bucket.pending = bucket.members.size();
    bucket.work.reset();
  }
  next_ = 0;
  phase_ = Phase::idle;
}

}  // namespace ddp
