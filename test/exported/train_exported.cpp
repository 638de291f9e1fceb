// Trains exported models one after another, as zoo_test.py does in Python:
//
//   train_exported STEPS RANKS[s] sgd|adamw NAME.pt2...
//
// With an s after their number the ranks share the parameters.
//
// Rank R reads the inputs of each step from NAME.pt2.inputsR and writes the
// losses of the steps and that of an evaluation to NAME.pt2.lossesR and the
// trained values to NAME.pt2.trainedR. Rank 0 writes them as a program, too:
// NAME.pt2.saved.pt2. NAME.eval.pt2 is the program for eval(), if it is there.
// Without inputs for an evaluation, the program is converted to double and back
// after the first step, and a clone makes the last step.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/checkpoint/state_dict.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exported_module.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/process_group.h"
#include "ddp/spawn.h"

namespace {

using Values = std::vector<c10::IValue>;

void add_leaves(const c10::IValue& value, std::vector<torch::Tensor>& leaves) {
  if (value.isTensor()) {
    leaves.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& one : value.toTupleRef().elements()) {
      add_leaves(one, leaves);
    }
  } else if (value.isList()) {
    for (const auto& one : value.toListRef()) {
      add_leaves(one, leaves);
    }
  } else {
    for (const auto& entry : value.toGenericDict()) {
      add_leaves(entry.value(), leaves);
    }
  }
}

torch::Tensor loss_of(const c10::IValue& out) {
  std::vector<torch::Tensor> leaves;
  add_leaves(out, leaves);
  torch::Tensor sum;
  for (const auto& leaf : leaves) {
    const auto loss = leaf.abs().square().to(torch::kFloat).mean();
    sum = sum.defined() ? sum + loss : 0 + loss;
  }
  return sum;
}

template <typename Model>
torch::Tensor step_loss(const std::string& name,
                        Model& model,
                        std::vector<torch::Tensor> inputs) {
  if (name == "energy") {
    auto positions = inputs[0].detach().requires_grad_();
    const auto energy = model->forward(positions).toTensor();
    const auto forces = torch::autograd::grad({energy},
                                              {positions},
                                              /*grad_outputs=*/{},
                                              /*retain_graph=*/std::nullopt,
                                              /*create_graph=*/true)[0];
    return energy.square() + forces.square().mean();
  }
  if (name == "nested") {
    c10::Dict<std::string, torch::Tensor> more;
    more.insert("k", inputs[2]);
    return loss_of(model->forward(
        Values{inputs[0],
               c10::ivalue::Tuple::create({inputs[1], c10::IValue(more)})},
        ddp::ExportedModuleImpl::Kwargs{{"scale", 2.0}}));
  }
  return loss_of(model->forward(Values(inputs.begin(), inputs.end())));
}

ddp::ExportedModule load(const std::string& path) {
  ddp::ExportedModuleOptions options;
  const auto eval = path.substr(0, path.size() - 4) + ".eval.pt2";
  if (std::ifstream(eval).good()) {
    options.eval_program(eval);
  }
  return ddp::ExportedModule(path, options);
}

/// AdamW with each operator of Python's. (LibTorch's own rounds the averages in
/// another way, and squares complex gradients.)
class PythonAdamW {
 public:
  explicit PythonAdamW(std::vector<torch::Tensor> parameters)
      : parameters_(std::move(parameters)), states_(parameters_.size()) {}

  void step() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].grad().defined()) {
        step_one(parameters_[i], states_[i]);
      }
    }
  }

 private:
  struct State {
    int steps = 0;
    torch::Tensor average;
    torch::Tensor square;
  };

  static torch::Tensor as_real(const torch::Tensor& tensor) {
    return tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
  }

  static void step_one(const torch::Tensor& whole, State& state) {
    if (state.steps++ == 0) {
      state.average = as_real(torch::zeros_like(whole));
      state.square = as_real(torch::zeros_like(whole));
    }
    constexpr double kRate = 0.01;
    whole.mul_(1 - kRate * 0.01);
    auto parameter = as_real(whole);
    const auto grad = as_real(whole.grad());
    state.average.lerp_(grad, 1 - 0.9);
    state.square.mul_(0.999).addcmul_(grad, grad, 1 - 0.999);
    const auto root = std::pow(1 - std::pow(0.999, state.steps), 0.5);
    parameter.addcdiv_(state.average,
                       (state.square.sqrt() / root).add_(1e-8),
                       -(kRate / (1 - std::pow(0.9, state.steps))));
  }

  std::vector<torch::Tensor> parameters_;
  std::vector<State> states_;
};

using Step = std::function<void()>;

Step make_step(const std::string& optimizer,
               const std::vector<torch::Tensor>& parameters,
               double momentum = 0.9) {
  if (optimizer == "adamw") {
    auto adamw = std::make_shared<PythonAdamW>(parameters);
    return [adamw] { adamw->step(); };
  }
  auto sgd = std::make_shared<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(0.01).momentum(momentum).weight_decay(0.01));
  return [sgd] { sgd->step(); };
}

bool is_all_float(torch::nn::Module& module) {
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const auto& tensor : tensors) {
      if (tensor.is_complex() || (tensor.is_floating_point() &&
                                  tensor.scalar_type() != torch::kFloat)) {
        return false;
      }
    }
  }
  return true;
}

void train(const std::string& path,
           int steps,
           int rank,
           int ranks,
           bool shards,
           const std::string& optimizer) {
  const auto name = std::filesystem::path(path).stem().string();
  auto net = load(path);
  std::optional<ddp::DistributedDataParallel<ddp::ExportedModule>> model;
  std::optional<ddp::FullyShardedDataParallel<ddp::ExportedModule>> sharded;
  if (ranks > 1) {
    if (rank > 0) {  // rank 0's values are broadcast
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) {
        parameter.add_(1);
      }
    }
    shards ? void(sharded.emplace(net)) : void(model.emplace(net));
  }
  const auto of_rank = std::to_string(rank);
  const auto all = ddp::detail::to_state_dict(
      ddp::detail::read_torch_file(path + ".inputs" + of_rank).value);
  std::ofstream losses(path + ".losses" + of_rank);
  losses.precision(17);
  const auto inputs_of = [&](int step) {
    std::vector<torch::Tensor> inputs;
    for (int i = 0;; ++i) {
      const auto* found =
          all.find(std::to_string(step) + "." + std::to_string(i));
      if (found == nullptr) {
        return inputs;
      }
      inputs.push_back(*found);
    }
  };
  const bool evaluates = !inputs_of(steps).empty();
  // LibTorch's own SGD rounds the momentum of bfloat16 in another way.
  const double momentum = name == "bfloat16" ? 0 : 0.9;
  auto optimize =
      make_step(optimizer,
                sharded ? (*sharded)->parameters() : net->parameters(),
                momentum);
  const auto clone = [&net] {
    auto copy = ddp::ExportedModule(
        std::dynamic_pointer_cast<ddp::ExportedModuleImpl>(net->clone()));
    const torch::NoGradGuard no_grad;
    const auto other = net->clone();  // has memory of its own
    for (auto& parameter : other->parameters()) {
      parameter.zero_();
    }
    return copy;
  };
  torch::manual_seed(1 + rank);
  for (int step = 0; step < steps; ++step) {
    if (!evaluates && !shards && step == 1 && is_all_float(*net)) {
      net->to(torch::kDouble);
      net->to(torch::kFloat);
    }
    if (!evaluates && !shards && step == steps - 1) {
      net = clone();
      optimize = make_step(optimizer, net->parameters(), momentum);
    }
    sharded ? (*sharded)->zero_grad() : net->zero_grad();
    const auto loss = sharded ? step_loss(name, *sharded, inputs_of(step))
                      : model ? step_loss(name, *model, inputs_of(step))
                              : step_loss(name, net, inputs_of(step));
    loss.backward();
    optimize();
    losses << loss.item<double>() << "\n";
  }
  std::optional<ddp::WholeParameters> whole;
  if (sharded) {
    whole.emplace(**sharded);
  }
  if (evaluates) {
    net->eval();
    auto copy = clone();
    auto generator = at::detail::getDefaultCPUGenerator();
    const auto draws = generator.get_state();
    const auto loss = step_loss(name, net, inputs_of(steps)).item<double>();
    losses << loss << "\n";
    generator.set_state(draws);
    TORCH_CHECK(step_loss(name, copy, inputs_of(steps)).item<double>() == loss,
                "Expected the loss of a copy to be equal");
  }
  ddp::save_state_dict(*net, path + ".trained" + of_rank);
  if (rank == 0) {
    net->save(path + ".saved.pt2");
  }
}

void train_all(const std::vector<std::string>& paths,
               int steps,
               int rank,
               int ranks,
               bool shards,
               const std::string& optimizer) {
  torch::set_num_threads(1);
  if (ranks > 1) {
    ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  }
  bool is_whole = true;
  for (const auto& path : paths) {
    try {
      train(path, steps, rank, ranks, shards, optimizer);
    } catch (const c10::Error& error) {
      const auto text = path + ": " + error.what_without_backtrace();
      TORCH_CHECK(ranks == 1, text);  // alone it trains the others
      std::fprintf(stderr, "%s\n", text.c_str());
      is_whole = false;
    }
  }
  TORCH_CHECK(is_whole, "Expected all models to be trained");
  if (ranks > 1) {
    ddp::destroy_process_group();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr,
                 "usage: train_exported STEPS RANKS[s] sgd|adamw "
                 "NAME.pt2...\n");
    return 2;
  }
  const int ranks = std::atoi(argv[2]);
  const bool shards = std::string(argv[2]).back() == 's';
  const auto train_rank = [&](int rank) {
    train_all({argv + 4, argv + argc},
              std::atoi(argv[1]),
              rank,
              ranks,
              shards,
              argv[3]);
  };
  try {
    ranks == 1 ? train_rank(0) : ddp::spawn(train_rank, ranks);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
