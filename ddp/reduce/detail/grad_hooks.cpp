#include "ddp/reduce/detail/grad_hooks.h"

#include <utility>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace ddp::detail {
namespace {

std::string description_of(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(),
                  " ",
                  tensor.sizes(),
                  " with strides ",
                  tensor.strides());
}

bool has_layout_of(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a.strides() == b.strides() ||
                                    (a.is_contiguous() && b.is_contiguous()));
}

at::Tensor without_memory(const at::Tensor& tensor) {
  return at::empty_strided(
      tensor.sizes(),
      tensor.strides(),
      at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kMeta));
}

}  // namespace

/// The object that owns a parameter, and the parameter's index there.
struct GradHooks::Link {
  std::weak_ptr<Listener> owner;
  size_t index = 0;
  bool throws_without_owner = false;

  bool is_of(const std::shared_ptr<Listener>& other) const {
    return !owner.owner_before(other) && !other.owner_before(owner);
  }
};

struct GradHooks::Hook : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& parameter) override {
    if (next) {
      (*next)(parameter);
    }
    if (const auto listener = link->owner.lock()) {
      (*listener)(link->index);
      return;
    }
    TORCH_CHECK(!link->throws_without_owner,
                "Expected the DistributedDataParallel (or Reducer) to live "
                "until backward() of its outputs has returned, but it was "
                "destroyed before, and the gradients would stay this rank's "
                "own; keep it, or wrap the module again");
  }

  std::shared_ptr<Link> link = std::make_shared<Link>();
  std::unique_ptr<PostAccumulateGradHook> next;  // the program's own
};

GradHooks::GradHooks(std::vector<NamedParameter> parameters, Listener listener)
    : listener_(std::make_shared<Listener>(std::move(listener))) {
  hooked_.reserve(parameters.size());
  for (auto& parameter : parameters) {
    const auto device = parameter.tensor.device();
    auto like = without_memory(parameter.tensor);
    hooked_.push_back({std::move(parameter), std::move(like), device, nullptr});
  }
  claim();
}

GradHooks::~GradHooks() {
  for (const auto& hooked : hooked_) {
    if (hooked.link && hooked.link->is_of(listener_)) {
      hooked.link->throws_without_owner = is_needed_;
    }
  }
}

void GradHooks::claim() {
  for (size_t index = 0; index < hooked_.size(); ++index) {
    Hooked& hooked = hooked_[index];
    check_unchanged(hooked);
    install(hooked);
    if (!hooked.link->is_of(listener_)) {
      hooked.link->owner = listener_;
      hooked.link->index = index;
    }
  }
}

/// Keeps a hook of the program, which LibTorch stores in the same place, and
/// notices one that has replaced this hook.
void GradHooks::install(Hooked& hooked) const {
  auto& place =
      torch::autograd::impl::post_acc_grad_hooks(hooked.parameter.tensor);
  if (place && place.get() == hooked.hook) {
    return;
  }
  auto* hook = dynamic_cast<Hook*>(place.get());
  if (hook == nullptr) {
    auto own = std::make_unique<Hook>();
    hook = own.get();
    own->next = std::move(place);
    torch::autograd::impl::set_post_acc_grad_hooks(hooked.parameter.tensor,
                                                   std::move(own));
  }
  hooked.hook = static_cast<torch::autograd::PostAccumulateGradHook*>(hook);
  hooked.link = hook->link;
}

void GradHooks::check_unchanged(const Hooked& hooked) const {
  const auto& [name, tensor, sparse] = hooked.parameter;
  const bool is_unchanged = has_layout_of(tensor, hooked.like) &&
                            tensor.scalar_type() == hooked.like.scalar_type() &&
                            tensor.device() == hooked.device;
  TORCH_CHECK(is_unchanged || !tensor.requires_grad(),
              "Expected parameter ",
              name,
              " to stay ",
              description_of(hooked.like),
              " on ",
              hooked.device,
              ", as it was when the module was wrapped, but it is ",
              description_of(tensor),
              " on ",
              tensor.device(),
              " now. Convert or move the module before it is wrapped, and give "
              "torch::load this rank's device");
}

const NamedParameter* GradHooks::first_foreign() const {
  for (const auto& hooked : hooked_) {
    if (!hooked.link->is_of(listener_) && !hooked.link->owner.expired() &&
        hooked.parameter.tensor.requires_grad()) {
      return &hooked.parameter;
    }
  }
  return nullptr;
}

}  // namespace ddp::detail
