// One rank of the parity test of passes that differ from a plain training step.
// passes.py does the same with PyTorch's DDP. Writes all parameters and buffers
// after every step.
//
// usage: parity passes FOLDER [CASE...]
#include <array>

#include <torch/csrc/autograd/autograd.h>

#include "test/parity/parity.h"
#include "test/parity/passes_support.h"

namespace parity {
namespace passes_side {

using torch::Tensor;
using torch::autograd::grad;
using torch::nn::LinearOptions;
using Options = ddp::DistributedDataParallelOptions;
using Model = Trained<Net>;

constexpr int64_t kSteps = 4;

std::vector<Tensor> slopes_with_graph(const Tensor& output,
                                      const std::vector<Tensor>& leaves) {
  return grad({output}, leaves, {}, std::nullopt, /*create_graph=*/true);
}

// WGAN-GP -------------------------------------------------------------------

Tensor distance(Model& critic, int64_t step) {
  const auto of_fakes = critic.model->forward(others(step)).mean();
  const auto of_reals = critic.model->forward(inputs(step)).mean();
  return of_fakes - of_reals;
}

Tensor penalty(Model& critic, int64_t step) {
  const auto mixed =
      (inputs(step) * 0.75 + others(step) * 0.25).requires_grad_();
  const auto scores = critic.model->forward(mixed);
  const auto slope = slopes_with_graph(scores.sum(), {mixed})[0];
  const auto lengths = torch::square(slope).sum(1).sqrt();
  return torch::square(lengths - 1).mean() * 10;
}

template <typename Backward>
void train_critic(Log& log, bool has_bias, const Backward& backward) {
  Model critic{Net(Norm::none, LinearOptions(4, 1).bias(has_bias))};
  for (int64_t step = 0; step < kSteps; ++step) {
    critic.optimizer.zero_grad();
    backward(critic, step);
    critic.optimizer.step();
    log.state(critic.net);
  }
}

void penalty_in_the_loss(Log& log) {
  train_critic(log, true, [](Model& critic, int64_t step) {
    const auto loss = distance(critic, step);
    (loss + penalty(critic, step)).backward();
  });
}

void penalty_with_a_pass(Log& log) {
  train_critic(log, false, [](Model& critic, int64_t step) {
    distance(critic, step).backward();
    penalty(critic, step).backward();
  });
}

/// All forwards precede the passes. PyTorch silently does not reduce the second
/// pass.
void penalty_after_the_loss(Log& log) {
  train_critic(log, false, [](Model& critic, int64_t step) {
    const auto first = distance(critic, step);
    const auto second = penalty(critic, step);
    first.backward();
    second.backward();
  });
}

/// The last bias does not affect the slope. PyTorch reports the error one step
/// later.
void penalty_without_a_bias(Log& log) {
  Model critic{Net(Norm::none, LinearOptions(4, 1))};
  log.error([&] { penalty(critic, 0).backward(); });
}

// A frozen critic -----------------------------------------------------------

enum class Thaw { before_backward, after_backward };

void train_against(Log& log, Thaw thaw) {
  Model generator{Net(Norm::batch, LinearOptions(4, 3))};
  Model critic{Net(Norm::none, LinearOptions(4, 1))};
  for (int64_t step = 0; step < kSteps; ++step) {
    critic.optimizer.zero_grad();
    const auto fakes = generator.model->forward(others(step)).detach();
    const auto of_fakes = critic.model->forward(fakes).mean();
    (of_fakes - critic.model->forward(inputs(step)).mean()).backward();
    critic.optimizer.step();

    require_grad(*critic.net, false);
    generator.optimizer.zero_grad();
    const auto made = generator.model->forward(inputs(step));
    const auto loss = -critic.model->forward(made).mean();
    if (thaw == Thaw::before_backward) {
      require_grad(*critic.net, true);
    }
    loss.backward();
    generator.optimizer.step();
    require_grad(*critic.net, true);
    log.state(generator.net, critic.net);
  }
}

// Passes on rank 0 alone ----------------------------------------------------

/// Runs a pass of this rank alone, then computes slopes in three ways.
void look_on_rank_0(Model& trained, int64_t step, Log& log) {
  if (ddp::rank() != 0) {
    return;
  }
  trained.model->eval();
  {
    const ddp::NoSyncGuard no_sync(*trained.model);
    trained.net->forward(others(step)).sum().backward();
  }
  log.note("gradient of this rank", trained.net->first->weight.grad());
  const auto x = others(step).requires_grad_();
  const auto slopes =
      grad({trained.model->forward(x).sum()}, {x, trained.net->first->weight});
  log.note("slope", slopes[0]);
  log.note("slope of the weight", slopes[1]);
  const std::vector<Tensor> leaves{x};
  trained.model->forward(x).sum().backward({}, std::nullopt, false, leaves);
  log.note("slope by backward", x.grad());
  require_grad(*trained.net, false);
  trained.model->forward(x).sum().backward();
  require_grad(*trained.net, true);
  log.note("slope through frozen layers", x.grad());
  trained.model->train();
}

void train_and_look(Log& log, Norm norm, const Options& options = {}) {
  Model trained(Net(norm), options);
  for (int64_t step = 0; step < kSteps; ++step) {
    look_on_rank_0(trained, step, log);
    trained.train(inputs(step), targets(step));
    log.state(trained.net);
  }
}

/// Evaluates before, between and after the steps. In PyTorch rank 0 would wait
/// for the others.
void evaluation(Log& log) {
  Model trained{Net(Norm::batch)};
  for (int64_t step = 0; step <= kSteps; ++step) {
    if (ddp::rank() == 0) {
      const torch::NoGradGuard no_grad;
      trained.model->eval();
      log.note("evaluated", trained.model->forward(others(step)));
      trained.model->train();
    }
    ddp::barrier();
    if (step < kSteps) {
      trained.train(inputs(step), targets(step));
    }
    log.state(trained.net);
  }
}

// Changes during the training ------------------------------------------------

void train_and_eval(Log& log) {
  Model trained{Net(Norm::batch)};
  const std::array<torch::nn::Module*, 2> modules{trained.model.get(),
                                                  trained.net.get()};
  for (int64_t step = 0; step < kSteps; ++step) {
    modules.at(step % 2)->train();
    trained.train(inputs(step), targets(step));
    log.state(trained.net);
    modules.at(step / 2 % 2)->eval();
    const torch::NoGradGuard no_grad;
    log.note("evaluated", trained.model->forward(others(step)));
    log.state(trained.net);
  }
}

/// PyTorch needs find_unused_parameters here.
void freeze_in_epoch(Log& log, int64_t epoch) {
  Model trained{Net(Norm::batch)};
  for (int64_t step = 0; step < 3 * kSteps; ++step) {
    require_grad(*trained.net->first, step / kSteps != epoch);
    trained.train(inputs(step), targets(step));
    log.state(trained.net);
  }
}

/// PyTorch silently trains parameters without a hook on each rank alone.
void thawed(Log& log) {
  Net net(Norm::none);
  require_grad(*net->first, false);
  Model trained(net);
  for (int64_t step = 0; step < kSteps; ++step) {
    trained.train(inputs(step), targets(step));
    log.state(net);
  }
  require_grad(*net->first, true);
  log.error([&] { trained.model->forward(inputs(0)); });
}

void tied_weight(Log& log) {
  Trained<Tied> trained{Tied()};
  for (int64_t step = 0; step < kSteps; ++step) {
    trained.train(inputs(step), others(step));
    log.state(trained.net);
  }
}

// Other passes --------------------------------------------------------------

void maml(Log& log) {
  Model trained{Net(Norm::none)};
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto loss =
        torch::mse_loss(trained.model->forward(inputs(step)), targets(step));
    auto fast = trained.net->parameters();
    const auto slopes = slopes_with_graph(loss, fast);
    for (size_t i = 0; i < fast.size(); ++i) {
      fast[i] = fast[i] - slopes[i] * 0.5;
    }
    const auto hidden =
        torch::tanh(torch::linear(others(step), fast[0], fast[1]));
    const auto output = torch::linear(hidden, fast[2], fast[3]);
    trained.optimizer.zero_grad();
    torch::mse_loss(output, targets(step + 1)).backward();
    trained.optimizer.step();
    log.state(trained.net);
  }
}

/// In PyTorch the forward alone turns the pass in no_sync into a synchronised
/// one.
void no_sync_after_a_forward(Log& log) {
  Model trained{Net(Norm::none)};
  const auto& weight = trained.net->first->weight;
  for (int64_t step = 0; step < kSteps; ++step) {
    trained.model->forward(others(step));
    trained.optimizer.zero_grad();
    {
      const ddp::NoSyncGuard no_sync(*trained.model);
      torch::mse_loss(trained.model->forward(inputs(step)), targets(step))
          .backward();
    }
    log.note("of this rank", weight.grad());
    torch::mse_loss(trained.model->forward(others(step)), targets(step))
        .backward();
    log.note("averaged", weight.grad());
    trained.optimizer.step();
    log.state(trained.net);
  }
}

/// The ranks have different numbers of inputs in each of two epochs.
void join(Log& log, bool by_all) {
  Model trained{Net(Norm::none)};
  for (const auto& counts : {std::array<int64_t, 2>{2, 4}, {3, 0}}) {
    ddp::Join join({*trained.model},
                   ddp::JoinOptions().divide_by_initial_world_size(by_all));
    for (int64_t step = 0; step < counts.at(ddp::rank()); ++step) {
      trained.train(inputs(step), targets(step));
      log.note("weight " + std::to_string(step), trained.net->first->weight);
    }
    join.finish();
    log.state(trained.net);
  }
}

const std::vector<Case> kCases{
    {"penalty_in_the_loss", penalty_in_the_loss},
    {"penalty_with_a_pass", penalty_with_a_pass},
    {"penalty_after_the_loss", penalty_after_the_loss},
    {"frozen_critic",
     [](Log& log) { train_against(log, Thaw::after_backward); }},
    {"critic_thawed_before_backward",
     [](Log& log) { train_against(log, Thaw::before_backward); }},
    {"saliency", [](Log& log) { train_and_look(log, Norm::none); }},
    {"saliency_with_unused",
     [](Log& log) {
       train_and_look(log, Norm::none, Options().find_unused_parameters(true));
     }},
    // In PyTorch the ranks' buffer broadcasts would no longer match.
    {"saliency_with_buffers",
     [](Log& log) { train_and_look(log, Norm::batch); }},
    {"evaluation", evaluation},
    {"train_and_eval", train_and_eval},
    {"frozen_first_epoch", [](Log& log) { freeze_in_epoch(log, 0); }},
    {"frozen_second_epoch", [](Log& log) { freeze_in_epoch(log, 1); }},
    {"thawed", thawed},
    {"tied_weight", tied_weight},
    {"maml", maml},
    {"no_sync_after_a_forward", no_sync_after_a_forward},
    {"join", [](Log& log) { join(log, true); }},
    {"join_by_live_ranks", [](Log& log) { join(log, false); }},
    // Last: the failed pass ends the job.
    {"penalty_without_a_bias", penalty_without_a_bias},
};

}  // namespace passes_side

int passes(const Arguments& args) {
  return passes_side::run_cases(args, passes_side::kCases);
}

}  // namespace parity
