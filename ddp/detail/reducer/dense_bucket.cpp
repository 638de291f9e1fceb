#include <algorithm>
#include <utility>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "ddp/detail/piece_of.h"
#include "ddp/detail/reducer/bucket.h"

namespace ddp::detail {
namespace {

void check_gradient(const NamedParameter& parameter, const at::Tensor& grad) {
  TORCH_CHECK(
      grad.layout() == c10::kStrided,
      "Expected a dense gradient for parameter ",
      parameter.name,
      ", but got a sparse one; make its layer a torch::nn::Embedding or "
      "EmbeddingBag with sparse(true), which are known to have such");
  TORCH_CHECK(grad.dtype() == parameter.tensor.dtype(),
              "Expected a gradient of type ",
              parameter.tensor.scalar_type(),
              " for parameter ",
              parameter.name,
              ", but got ",
              grad.scalar_type());
}

/// Copies each gradient when it comes: it is still in the cache.
class HostBucket : public DenseBucket {
 public:
  using DenseBucket::DenseBucket;

  bool take(Slot& slot, const ScaledCopy& copy) override {
    at::Tensor& grad = slot.parameter.tensor.mutable_grad();
    if (grad.defined()) {
      check_gradient(slot.parameter, grad);
      copy.scaled(slot.content, grad);
    } else {
      slot.content.zero_();
    }
    if (slot.ready) {
      grad = slot.content;
    }
    return count_down();
  }
};

/// Copies when all have come: one kernel for the whole bucket beats a launch
/// for each gradient.
class DeviceBucket : public DenseBucket {
 public:
  using DenseBucket::DenseBucket;

  bool take(Slot& /*slot*/, const ScaledCopy& copy) override {
    const bool is_full = count_down();
    if (is_full) {
      copy_all(copy);
    }
    return is_full;
  }

 private:
  void copy_all(const ScaledCopy& copy) {
    std::vector<at::Tensor> contents;
    std::vector<at::Tensor> grads;
    for (Slot* slot : members()) {
      at::Tensor& grad = slot->parameter.tensor.mutable_grad();
      if (!grad.defined()) {
        slot->content.zero_();
      } else if (!grad.is_same(slot->content)) {
        check_gradient(slot->parameter, grad);
        contents.push_back(slot->content);
        grads.push_back(grad);
      }
      if (slot->ready) {
        grad = slot->content;
      }
    }
    if (!contents.empty()) {
      at::_foreach_copy_(contents, grads);
    }
    payload().mul_(copy.factor());
  }
};

at::Tensor memory_for(const std::vector<Slot*>& members,
                      int64_t multiple_of,
                      bool has_spare) {
  int64_t numel = has_spare ? 1 : 0;
  for (const Slot* slot : members) {
    numel += slot->parameter.tensor.numel();
  }
  const int64_t padded = (numel + multiple_of - 1) / multiple_of * multiple_of;
  const at::Tensor& like = members.front()->parameter.tensor;
  return at::zeros({padded}, like.options().requires_grad(false));
}

}  // namespace

DenseBucket::DenseBucket(std::vector<Slot*> slots,
                         int64_t multiple_of,
                         bool has_spare)
    : Bucket(std::move(slots)),
      flat_(memory_for(members(), multiple_of, has_spare)) {
  int64_t offset = 0;
  for (Slot* slot : members()) {
    const at::Tensor& param = slot->parameter.tensor;
    slot->content = gradient_piece(flat_, offset, param);
    offset += param.numel();
  }
  if (has_spare) {
    spare_ = piece_of(flat_, flat_.numel() - 1, {1}, {1});
  }
  owners_ = flat_.storage().use_count();
}

void DenseBucket::move_in(Slot& slot, const at::Tensor& content) {
  const c10::NoGradGuard no_grad;
  slot.content.copy_(content);
  at::Tensor& grad = slot.parameter.tensor.mutable_grad();
  if (grad.is_same(content)) {
    grad = slot.content;
  }
}

bool DenseBucket::is_lent() const {
  const auto has_holder = [](const Slot* slot) {
    return slot->content.use_count() > 1 &&
           !slot->parameter.tensor.grad().is_same(slot->content);
  };
  return flat_.storage().use_count() > owners_ ||
         std::any_of(members().begin(), members().end(), has_holder);
}

std::unique_ptr<DenseBucket> make_dense_bucket(std::vector<Slot*> members,
                                               int64_t multiple_of,
                                               bool has_spare) {
  if (members.front()->parameter.tensor.is_cpu()) {
    return std::make_unique<HostBucket>(
        std::move(members), multiple_of, has_spare);
  }
  return std::make_unique<DeviceBucket>(
      std::move(members), multiple_of, has_spare);
}

}  // namespace ddp::detail
