#include "ddp/detail/reducer/gradient_buckets.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

namespace ddp::detail {
namespace {

std::vector<GradientSpec> specs_of(const std::vector<Slot>& slots) {
  std::vector<GradientSpec> specs;
  specs.reserve(slots.size());
  for (const auto& slot : slots) {
    specs.push_back({slot.param.numel(),
                     slot.param.scalar_type(),
                     slot.param.device(),
                     slot.sparse});
  }
  return specs;
}

void check_gradient(const Slot& slot) {
  const at::Tensor& grad = slot.param.grad();
  if (!grad.defined()) {
    return;
  }
  TORCH_CHECK(
      slot.sparse || grad.layout() == c10::kStrided,
      "Expected a dense gradient for parameter ",
      slot.name,
      ", but got a sparse one; make its layer a torch::nn::Embedding or "
      "EmbeddingBag with sparse(true), which are known to have such");
  TORCH_CHECK(grad.scalar_type() == slot.param.scalar_type(),
              "Expected a gradient of type ",
              slot.param.scalar_type(),
              " for parameter ",
              slot.name,
              ", but got ",
              grad.scalar_type());
}

at::Tensor no_rows(const at::Tensor& like) {
  return at::_sparse_coo_tensor_with_dims(
      /*sparse_dim=*/1,
      /*dense_dim=*/like.dim() - 1,
      like.sizes(),
      like.options().requires_grad(false).layout(c10::kSparse));
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<Slot> slots,
                                 const BucketCaps& caps,
                                 double scale)
    : slots_(std::move(slots)), caps_(caps), copy_(scale) {
  std::vector<size_t> reverse(slots_.size());
  std::iota(reverse.rbegin(), reverse.rend(), size_t{0});
  build(plan_buckets(specs_of(slots_), reverse, caps_));
}

BucketPlan GradientBuckets::plan() const {
  BucketPlan plan;
  for (const auto& bucket : buckets_) {
    if (!bucket.members.empty()) {
      plan.push_back(bucket.members);
    }
  }
  return plan;
}

void GradientBuckets::build(const BucketPlan& plan) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < plan.size(); ++i) {
    const bool is_last = i + 1 == plan.size();
    buckets.push_back(make_bucket(slots_, plan[i], i, is_last ? 1 : 0));
  }
  if (!buckets.back().flat.defined()) {  // sparse: no place for the spare one
    buckets.push_back(make_spare_bucket(slots_.front().param));
  }
  buckets_ = std::move(buckets);
  const at::Tensor& last = buckets_.back().flat;
  spare_ = piece_of(last, last.numel() - 1, {1}, {1});
  for (auto& bucket : buckets_) {
    bucket.owners =
        bucket.flat.defined() ? bucket.flat.storage().use_count() : 0;
  }
}

bool GradientBuckets::place(const std::vector<size_t>& order) {
  const auto next = plan_buckets(specs_of(slots_), order, caps_);
  if (next == plan()) {
    return false;
  }
  move_to(next);
  return true;
}

void GradientBuckets::renew() {
  move_to(plan());
}

void GradientBuckets::move_to(const BucketPlan& plan) {
  c10::NoGradGuard no_grad;
  const auto old_spare = spare_;
  std::vector<at::Tensor> contents;
  contents.reserve(slots_.size());
  for (const auto& slot : slots_) {
    contents.push_back(slot.sparse ? buckets_[slot.bucket].flat : slot.view);
  }
  build(plan);
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.sparse) {
      buckets_[slot.bucket].flat = contents[i];
      continue;
    }
    slot.view.copy_(contents[i]);
    at::Tensor& grad = slot.param.mutable_grad();
    if (grad.is_same(contents[i])) {
      grad = slot.view;
    }
  }
  spare_.copy_(old_spare);
}

bool GradientBuckets::is_lent() const {
  const auto has_alias = [this](const Bucket& bucket) {
    return !bucket.holds_sparse(slots_) &&
           bucket.flat.storage().use_count() > bucket.owners;
  };
  const auto has_holder = [](const Slot& slot) {
    return slot.view.use_count() > 1 && !slot.param.grad().is_same(slot.view);
  };
  return std::any_of(buckets_.begin(), buckets_.end(), has_alias) ||
         std::any_of(slots_.begin(), slots_.end(), has_holder);
}

bool GradientBuckets::add(size_t index) {
  Slot& slot = slots_[index];
  Bucket& bucket = buckets_[slot.bucket];
  if (slot.sparse) {
    take_sparse(slot);
    return --bucket.pending == 0;
  }
  // On the CPU the gradient is still in the cache; on a GPU one kernel for the
  // whole bucket beats a launch for each gradient.
  const bool at_arrival = bucket.flat.is_cpu();
  if (at_arrival) {
    take(slot);
  }
  const bool is_full = --bucket.pending == 0;
  if (is_full && !at_arrival) {
    take_all(bucket);
  }
  return is_full;
}

void GradientBuckets::take(Slot& slot) {
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

void GradientBuckets::take_sparse(const Slot& slot) {
  check_gradient(slot);
  const at::Tensor& grad = slot.param.grad();
  at::Tensor rows = no_rows(slot.param);
  if (grad.defined()) {
    // Dense where the parameter has other uses beside the sparse layer.
    rows =
        grad.is_sparse() ? grad.coalesce() : grad.to_sparse(/*sparse_dim=*/1);
  }
  buckets_[slot.bucket].flat = at::mul(rows, copy_.factor()).coalesce();
}

void GradientBuckets::take_all(Bucket& bucket) {
  std::vector<at::Tensor> views;
  std::vector<at::Tensor> grads;
  for (const size_t member : bucket.members) {
    Slot& slot = slots_[member];
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

void GradientBuckets::hand_out(const std::vector<size_t>& indices) {
  for (const size_t index : indices) {
    const Slot& slot = slots_[index];
    slot.param.mutable_grad() =
        slot.sparse ? buckets_[slot.bucket].flat : slot.view;
  }
}

void GradientBuckets::reset() {
  for (auto& slot : slots_) {
    slot.ready = false;
    slot.accumulated = false;
  }
  for (auto& bucket : buckets_) {
    bucket.pending = bucket.members.size();
    bucket.work.reset();
    if (bucket.holds_sparse(slots_)) {
      bucket.flat = at::Tensor();
    }
  }
}

}  // namespace ddp::detail
