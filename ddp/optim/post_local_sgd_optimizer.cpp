#include "ddp/optim/post_local_sgd_optimizer.h"

#include <utility>

#include <c10/util/Exception.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/state/optimizer_state.h"

namespace ddp::detail {
namespace {

constexpr const char* kAverager = "averager";

}  // namespace

AveragingOptimizer::AveragingOptimizer(std::shared_ptr<ModelAverager> averager)
    : averager_(std::move(averager)) {
  TORCH_CHECK(averager_ != nullptr,
              "Expected an averager for PostLocalSGDOptimizer, but got none");
}

// The derived class is the optimizer, too.

c10::IValue AveragingOptimizer::state_dict() const {
  const auto state =
      optimizer_to_value(dynamic_cast<const torch::optim::Optimizer&>(*this));
  for (const auto& item : averager_->state_dict().toGenericDict()) {
    state.toGenericDict().insert(item.key(), item.value());
  }
  return state;
}

void AveragingOptimizer::check_state_dict(const c10::IValue& state) const {
  check_optimizer(dynamic_cast<const torch::optim::Optimizer&>(*this), state);
  averager_->check_state_dict(state);
}

void AveragingOptimizer::load_state_dict(const c10::IValue& state) {
  check_state_dict(state);
  load_optimizer(dynamic_cast<torch::optim::Optimizer&>(*this), state);
  averager_->load_state_dict(state);
}

void AveragingOptimizer::save_averager(
    torch::serialize::OutputArchive& archive) const {
  archive.write(kAverager, averager_->state_dict());
}

void AveragingOptimizer::load_averager(
    torch::serialize::InputArchive& archive) {
  auto state = new_dict();
  archive.try_read(kAverager, state);
  averager_->load_state_dict(state);
}

}  // namespace ddp::detail
