#include "ddp/reduce/detail/gradient_buckets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/clone.h>
#include <ATen/ops/zeros.h>

namespace ddp::detail {
namespace {

std::vector<Slot> slots_of(std::vector<NamedParameter> parameters,
                           bool is_view) {
  std::vector<Slot> slots(parameters.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].parameter = std::move(parameters[i]);
    slots[i].is_view = is_view;
  }
  return slots;
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<NamedParameter> parameters,
                                 const BucketCaps& caps,
                                 const BucketLayout& layout)
    : slots_(slots_of(std::move(parameters), layout.keeps_memory)),
      caps_(caps),
      layout_(layout) {
  if (are_consumed()) {
    for (const auto& bucket : layout_.prescribed) {
      plan_.push_back(bucket.parameters);
    }
  } else {
    std::vector<size_t> reverse(slots_.size());
    std::iota(reverse.rbegin(), reverse.rend(), size_t{0});
    plan_ = plan_for(reverse);
  }
  build();
}

BucketPlan GradientBuckets::plan_for(const std::vector<size_t>& order) const {
  std::vector<GradientSpec> specs;
  specs.reserve(slots_.size());
  for (const auto& slot : slots_) {
    const at::Tensor& param = slot.parameter.tensor;
    specs.push_back({param.numel(),
                     gradient_dtype(param),
                     param.device(),
                     slot.parameter.sparse});
  }
  return plan_buckets(specs, order, caps_);
}

void GradientBuckets::join_streams(size_t bucket) {
  buckets_[bucket]->join_streams();
}

GradientBucket GradientBuckets::bucket(size_t index) const {
  const Bucket& bucket = *buckets_[index];
  return {index, buckets_.size(), bucket.payload(), bucket.parameters()};
}

void GradientBuckets::build() {
  std::vector<std::unique_ptr<Bucket>> buckets;
  spare_ = at::Tensor();
  spare_streams_.reset();
  for (auto& slot : slots_) {
    slot.bucket.reset();
  }
  for (size_t i = 0; i < plan_.size(); ++i) {
    for (const size_t index : plan_[i]) {
      slots_[index].bucket = i;
    }
    buckets.push_back(make_bucket(i));
  }
  spare_in_bucket_ = spare_.defined();
  if (!spare_in_bucket_) {
    const at::Tensor& like = slots_.front().parameter.tensor;
    spare_ =
        at::zeros({layout_.spare_numel}, like.options().requires_grad(false));
    if (!spare_.is_cpu()) {
      spare_streams_.emplace(spare_.device());
    }
  }
  buckets_ = std::move(buckets);
  has_begun_.assign(buckets_.size(), true);
}

void GradientBuckets::join_spare() {
  if (spare_streams_) {
    spare_streams_->join();
  }
}

/// If the bucket has the spare elements, they become `spare_`.
std::unique_ptr<Bucket> GradientBuckets::make_bucket(size_t index) {
  std::vector<Slot*> members;
  for (const size_t member : plan_[index]) {
    members.push_back(&slots_[member]);
  }
  if (members.front()->parameter.sparse) {
    return make_sparse_bucket(*members.front());
  }
  // The spare elements stay on one type of device, for any plan.
  const bool has_spare = index + 1 == plan_.size() && layout_.spare_in_bucket &&
                         members.front()->parameter.tensor.device().type() ==
                             slots_.front().parameter.tensor.device().type();
  auto layout = layout_;
  layout.spare_numel = has_spare ? layout_.spare_numel : 0;
  auto bucket =
      make_dense_bucket(std::move(members),
                        layout,
                        are_consumed() ? &layout_.prescribed[index] : nullptr);
  if (has_spare) {
    spare_ = bucket->spare();
  }
  return bucket;
}

void GradientBuckets::move_to(BucketPlan plan) {
  if (plan == plan_) {
    return;
  }
  plan_ = std::move(plan);
  std::vector<at::Tensor> contents;
  contents.reserve(slots_.size());
  for (const auto& slot : slots_) {
    contents.push_back(slot.content);
  }
  build();
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.bucket) {
      buckets_[*slot.bucket]->move_in(slot, contents[i]);
    } else {
      slot.content.reset();
    }
  }
  for (const auto& bucket : buckets_) {
    bucket->mark_full();
  }
}

void GradientBuckets::begin(std::optional<at::Device> device) {
  has_begun_.assign(buckets_.size(), layout_.keeps_memory || !hold_.expired());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (!device ||
        slots_[plan_[i].front()].parameter.tensor.device() == *device) {
      begin_bucket(i);
    }
  }
}

std::shared_ptr<const void> GradientBuckets::hold_memory() {
  auto hold = hold_.lock();
  if (!hold) {
    hold = std::make_shared<char>();
    hold_ = hold;
  }
  return hold;
}

void GradientBuckets::begin_bucket(size_t index) {
  if (has_begun_[index]) {
    return;
  }
  has_begun_[index] = true;
  if (buckets_[index]->is_aliased()) {
    replace_bucket(index);
  } else {
    buckets_[index]->begin();
  }
}

/// Moves the gradients that `.grad` holds into the new bucket.
void GradientBuckets::replace_bucket(size_t index) {
  std::vector<at::Tensor> contents;
  for (const size_t member : plan_[index]) {
    contents.push_back(slots_[member].content);
  }
  buckets_[index] = make_bucket(index);
  for (size_t i = 0; i < contents.size(); ++i) {
    Slot& slot = slots_[plan_[index][i]];
    if (slot.parameter.tensor.grad().is_same(contents[i])) {
      buckets_[index]->move_in(slot, contents[i]);
    }
  }
}

bool GradientBuckets::add(size_t index) {
  Slot& slot = slots_[index];
  TORCH_CHECK(slot.state != GradState::filled,
              "Expected parameter ",
              slot.parameter.name,
              " to train until backward() has returned, because it did in the "
              "forward, but it was frozen in between");
  TORCH_CHECK(slot.state == GradState::expected,
              "Expected one gradient for parameter ",
              slot.parameter.name,
              " in a backward pass, but got a second one. Use "
              "ddp::checkpoint_activations, or static_graph(true) where "
              "backward passes of your own inside the pass share parameters; "
              "else sum the losses and call backward() once");
  TORCH_CHECK(slot.bucket,
              "Expected no gradient for parameter ",
              slot.parameter.name,
              ", which no rank used in the first backward pass of a static "
              "graph, but got one; let every pass use the same parameters in "
              "the same way, or leave out static_graph");
  begin_bucket(*slot.bucket);
  slot.state = GradState::arrived;
  return buckets_[*slot.bucket]->add(slot, scaled_);
}

std::vector<size_t> GradientBuckets::expected() const {
  std::vector<size_t> result;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (expects(i)) {
      result.push_back(i);
    }
  }
  return result;
}

void GradientBuckets::fill_missing(size_t index) {
  Slot& slot = slots_[index];
  if (!slot.bucket) {
    return;
  }
  begin_bucket(*slot.bucket);
  slot.state = GradState::filled;
  at::Tensor& grad = slot.parameter.tensor.mutable_grad();
  if (grad.defined() && grad.is_same(slot.content)) {
    grad = grad.clone();
  }
  buckets_[*slot.bucket]->add(slot, scaled_);
}

void GradientBuckets::assign_grads_except(
    const std::vector<size_t>& kept) const {
  auto next_kept = kept.begin();
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (next_kept != kept.end() && *next_kept == i) {
      ++next_kept;
      continue;
    }
    const Slot& slot = slots_[i];
    if (!slot.bucket) {
      continue;
    }
    at::Tensor& grad = slot.parameter.tensor.mutable_grad();
    if (are_consumed()) {
      grad.reset();
      continue;
    }
    const bool is_own = slot.state == GradState::filled && !slot.is_view &&
                        is_held(grad, slot.content);
    if (slot.keeps_own || is_own) {
      grad.copy_(slot.content);
    } else {
      grad = slot.content;
    }
  }
}

void GradientBuckets::reset() {
  for (auto& slot : slots_) {
    slot.state = GradState::expected;
    slot.keeps_own = false;
  }
  for (const auto& bucket : buckets_) {
    bucket->reset();
  }
}

}  // namespace ddp::detail
