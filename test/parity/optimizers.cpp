// One rank of the parity test of optimizers. optimizers.py does the same with
// PyTorch's fused optimizers, its ZeroRedundancyOptimizer and its optimizer
// step in a communication hook.
//
// usage: parity optimizers FOLDER [CASE...]
#include "test/parity/parity.h"
#include "test/parity/passes_support.h"

namespace parity {
namespace optimizers_side {

using passes_side::inputs;
using passes_side::Log;
using passes_side::Net;
using passes_side::Norm;
using passes_side::targets;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Model = ddp::DistributedDataParallel<passes_side::NetImpl>;

constexpr int64_t kSteps = 8;

std::unique_ptr<Optimizer> make(const std::string& kind, const Groups& groups) {
  const auto sgd = SGDOptions(0.0625).momentum(0.75);
  const auto adam = AdamOptions(0.0625);
  if (kind == "sgd") {
    return std::make_unique<ddp::FusedSGD>(
        groups, SGDOptions(sgd).dampening(0.25).weight_decay(0.125));
  }
  if (kind == "nesterov") {
    return std::make_unique<ddp::FusedSGD>(groups,
                                           SGDOptions(sgd).nesterov(true));
  }
  if (kind == "adam") {
    return std::make_unique<ddp::FusedAdam>(
        groups, AdamOptions(adam).weight_decay(0.125));
  }
  if (kind == "amsgrad") {
    return std::make_unique<ddp::FusedAdam>(
        groups, AdamOptions(adam).betas({0.5, 0.75}).amsgrad(true));
  }
  return std::make_unique<ddp::FusedAdamW>(
      groups, AdamWOptions(0.0625).weight_decay(0.125));
}

void train(Log& log, const Net& net, Model& model, Optimizer& optimizer) {
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == kSteps / 2) {
      auto& options = optimizer.param_groups()[0].options();
      options.set_lr(options.get_lr() / 4);
    }
    optimizer.zero_grad();
    torch::mse_loss(model->forward(inputs(step)), targets(step)).backward();
    optimizer.step();
    log.state(net);
  }
}

void fused(Log& log, const std::string& kind) {
  const Net net(Norm::none);
  Model model(net);
  train(log, net, model, *make(kind, Groups{model->parameters()}));
}

void sharded(Log& log, const std::string& kind) {
  const Net net(Norm::none);
  Model model(net);
  ddp::ZeroRedundancyOptimizer optimizer(
      model->parameters(),
      [&](const Groups& groups) { return make(kind, groups); });
  log.note("owners", torch::tensor(optimizer.owners()[0]));
  train(log, net, model, optimizer);
}

const std::vector<passes_side::Case> kCases{
    {"fused_sgd", [](Log& log) { fused(log, "sgd"); }},
    {"fused_nesterov", [](Log& log) { fused(log, "nesterov"); }},
    {"fused_adam", [](Log& log) { fused(log, "adam"); }},
    {"fused_amsgrad", [](Log& log) { fused(log, "amsgrad"); }},
    {"fused_adamw", [](Log& log) { fused(log, "adamw"); }},
    {"sharded_sgd", [](Log& log) { sharded(log, "sgd"); }},
    {"sharded_adamw", [](Log& log) { sharded(log, "adamw"); }},
};

}  // namespace optimizers_side

int optimizers(const Arguments& args) {
  return passes_side::run_cases(args, optimizers_side::kCases);
}

}  // namespace parity
