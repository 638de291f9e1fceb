// One rank of the parity test of mixed precision. precision.py does the same
// with PyTorch's DDP, autocast and GradScaler.
//
// usage: parity precision FOLDER [CASE...]
#include <array>
#include <limits>

#include <torch/nn/utils/clip_grad.h>

#include "test/parity/parity.h"
#include "test/parity/passes_support.h"

namespace parity {
namespace precision_side {

using passes_side::inputs;
using passes_side::Log;
using passes_side::Norm;
using passes_side::others;
using passes_side::targets;
using torch::Tensor;
using torch::optim::SGD;
using Net = passes_side::Net;
using Model = passes_side::Trained<Net>;

constexpr int64_t kSteps = 8;
constexpr std::array kDtypes{torch::kBFloat16, torch::kHalf};
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ddp::GradScalerOptions small() {
  return ddp::GradScalerOptions()
      .init_scale(1024)
      .growth_factor(4)
      .backoff_factor(0.25)
      .growth_interval(2);
}

void note_scaler(Log& log, const ddp::GradScaler& scaler) {
  const auto state = scaler.state_dict().toGenericDict();
  log.note("scaler",
           torch::tensor(
               {state.at("scale").toDouble(),
                state.at("growth_factor").toDouble(),
                state.at("backoff_factor").toDouble(),
                static_cast<double>(state.at("growth_interval").toInt()),
                static_cast<double>(state.at("_growth_tracker").toInt())}));
}

double flaw(int64_t step) {
  const int rank = ddp::rank();
  if (step == 5) {
    return rank == 0 ? kNan : 1;
  }
  const bool is_bad = rank == 1 && (step == 2 || step == 6);
  return is_bad ? (step == 2 ? kInf : -kInf) : 1;
}

Tensor narrow_inputs(int64_t step) {
  return inputs(step).to(torch::kFloat);
}

Tensor narrow_targets(int64_t step) {
  return targets(step).to(torch::kFloat);
}

Net float_net() {
  Net net(Norm::none);
  net->to(torch::kFloat);
  return net;
}

void scaled(Log& log) {
  Model trained{Net(Norm::none)};
  ddp::GradScaler scaler(small());
  note_scaler(log, scaler);
  const auto& weight = trained.net->first->weight;
  for (int64_t step = 0; step < kSteps; ++step) {
    trained.optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(trained.model->forward(inputs(step)), targets(step));
    scaler.scale(loss * flaw(step)).backward();
    log.note("gradient", weight.grad());
    scaler.unscale_(trained.optimizer);
    log.note("unscaled", weight.grad());
    torch::nn::utils::clip_grad_value_(trained.model->parameters(), 0.125);
    scaler.step(trained.optimizer);
    scaler.update();
    note_scaler(log, scaler);
    log.state(trained.net);
  }
}

void two_optimizers(Log& log) {
  Net net(Norm::none);
  SGD first(net->first->parameters(), 0.0625);
  SGD last(net->last->parameters(), 0.0625);
  ddp::GradScaler scaler(small());
  for (int64_t step = 0; step < kSteps; ++step) {
    net->zero_grad();
    std::vector<Tensor> losses;
    for (const auto& input : {inputs(step), others(step)}) {
      losses.push_back(torch::mse_loss(net->forward(input), targets(step)));
    }
    if (step % 3 == 1) {
      losses[1] = losses[1] + (net->first->weight * kInf).sum();
    }
    const auto both = scaler.scale(losses);
    (both[0] + both[1]).backward();
    scaler.step(last);
    scaler.step(first);
    scaler.update();
    note_scaler(log, scaler);
    log.state(net);
  }
}

void new_scales(Log& log) {
  Net net(Norm::none);
  SGD optimizer(net->parameters(), 0.0625);
  ddp::GradScaler scaler(small());
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    scaler.scale(torch::mse_loss(net->forward(inputs(step)), targets(step)))
        .backward();
    scaler.step(optimizer);
    if (step == 1) {
      scaler.update(100.0);
    } else if (step == 3) {
      scaler.update(7.0);
    } else {
      scaler.update();
    }
    if (step == 4) {
      scaler.set_growth_interval(3);
      scaler.set_growth_factor(1.5);
    }
    note_scaler(log, scaler);
    log.state(net);
  }
}

void sparse(Log& log) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 3).sparse(true));
  table->to(torch::kDouble);
  Net net(Norm::none);
  {
    const torch::NoGradGuard no_grad;
    table->weight.copy_(torch::arange(15).view({5, 3}).div(16));
  }
  auto parameters = table->parameters();
  const auto more = net->parameters();
  parameters.insert(parameters.end(), more.begin(), more.end());
  SGD optimizer(parameters, 0.0625);
  ddp::GradScaler scaler(small());
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto rows =
        torch::tensor({step % 5, int64_t{3}, int64_t{3}, int64_t{1}});
    const auto loss = torch::mse_loss(net->forward(table(rows)), targets(step));
    scaler.scale(loss * (step == 4 ? kInf : 1.0)).backward();
    scaler.step(optimizer);
    scaler.update();
    note_scaler(log, scaler);
    log.note("table", table->weight);
    log.state(net);
  }
}

Tensor code(const Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return torch::tensor(dtype == torch::kBFloat16 ? 1
                       : dtype == torch::kHalf   ? 2
                                                 : 0);
}

std::array<Tensor, 6> outputs_of(Net& net, torch::Dtype dtype) {
  using Options = ddp::AutocastOptions;
  // Net::forward passes transposed weights to addmm, and autocast caches no
  // copies of these.
  const auto run = [&](int64_t step) {
    const auto hidden = torch::tanh(torch::linear(
        narrow_inputs(step), net->first->weight, net->first->bias));
    return torch::linear(hidden, net->last->weight, net->last->bias);
  };
  std::array<Tensor, 6> outputs;
  {
    const ddp::AutocastGuard autocast(torch::kCPU, Options().dtype(dtype));
    outputs[0] = run(0);
    {
      const ddp::AutocastGuard off(torch::kCPU, Options().enabled(false));
      outputs[1] = run(1);
      const ddp::AutocastGuard again(torch::kCPU);
      outputs[2] = run(2);
    }
    {
      const ddp::AutocastGuard inner(
          torch::kCPU, Options().dtype(kDtypes[0]).cache_enabled(false));
      outputs[3] = run(3);
    }
    outputs[4] = torch::mse_loss(outputs[0], narrow_targets(0));
  }
  outputs[5] = run(4);
  return outputs;
}

void nested(Log& log) {
  auto net = float_net();
  for (const auto dtype : kDtypes) {
    const auto outputs = outputs_of(net, dtype);
    auto sum = torch::zeros({});
    for (size_t i = 0; i < outputs.size(); ++i) {
      log.note("dtype " + std::to_string(i), code(outputs[i]));
      log.note("output " + std::to_string(i), outputs[i]);
      sum = sum + outputs[i].to(torch::kFloat).sum();
    }
    net->zero_grad();
    sum.backward();
    log.note("gradient", net->first->weight.grad());
    log.state(net);
  }
}

void mixed(Log& log, torch::Dtype dtype) {
  Model trained{float_net()};
  ddp::GradScaler scaler(
      ddp::GradScalerOptions().init_scale(1 << 20).growth_interval(2));
  for (int64_t step = 0; step < kSteps; ++step) {
    trained.optimizer.zero_grad();
    Tensor loss;
    {
      const ddp::AutocastGuard autocast(torch::kCPU,
                                        ddp::AutocastOptions().dtype(dtype));
      loss = torch::mse_loss(trained.model->forward(narrow_inputs(step)),
                             narrow_targets(step));
    }
    scaler.scale(loss * flaw(step)).backward();
    scaler.step(trained.optimizer);
    scaler.update();
    note_scaler(log, scaler);
    log.state(trained.net);
  }
}

void wire(Log& log, torch::Dtype dtype) {
  Model trained(
      float_net(),
      ddp::DistributedDataParallelOptions().exchange(
          std::make_shared<ddp::CastExchange>(ddp::process_group(), dtype)));
  for (int64_t step = 0; step < kSteps; ++step) {
    trained.train(narrow_inputs(step), narrow_targets(step));
    log.note("gradient", trained.net->first->weight.grad());
    log.state(trained.net);
  }
}

const std::vector<passes_side::Case> kCases{
    {"scaled", scaled},
    {"two_optimizers", two_optimizers},
    {"new_scales", new_scales},
    {"sparse", sparse},
    {"nested", nested},
    {"mixed_bf16", [](Log& log) { mixed(log, torch::kBFloat16); }},
    {"mixed_half", [](Log& log) { mixed(log, torch::kHalf); }},
    {"wire_bf16", [](Log& log) { wire(log, torch::kBFloat16); }},
    {"wire_half", [](Log& log) { wire(log, torch::kHalf); }},
};

}  // namespace precision_side

int precision(const Arguments& args) {
  return passes_side::run_cases(args, precision_side::kCases);
}

}  // namespace parity
