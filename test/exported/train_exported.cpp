// Trains exported models one after another, as zoo_test.py does in Python:
//
//   train_exported STEPS RANKS NAME.pt2...
//
// Rank R reads the inputs of each step from NAME.pt2.inputsR and writes the
// losses of the steps and that of an evaluation to NAME.pt2.lossesR and the
// trained values to NAME.pt2.trainedR. Rank 0 writes them as a program, too:
// NAME.pt2.saved.pt2. NAME.eval.pt2 is the program for eval(), if it is there.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/checkpoint/state_dict.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exported_module.h"
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

void train(const std::string& path, int steps, int rank, int ranks) {
  const auto name = std::filesystem::path(path).stem().string();
  auto net = load(path);
  std::optional<ddp::DistributedDataParallel<ddp::ExportedModule>> model;
  if (ranks > 1) {
    if (rank > 0) {  // rank 0's values are broadcast
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) {
        parameter.add_(1);
      }
    }
    model.emplace(net);
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
  // LibTorch's own SGD rounds the momentum of bfloat16 in another way.
  torch::optim::SGD optimizer(
      net->parameters(),
      torch::optim::SGDOptions(0.01).momentum(name == "bfloat16" ? 0 : 0.9));
  torch::manual_seed(1 + rank);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss = model ? step_loss(name, *model, inputs_of(step))
                            : step_loss(name, net, inputs_of(step));
    loss.backward();
    optimizer.step();
    losses << loss.item<double>() << "\n";
  }
  net->eval();
  const auto clone = [&net] {
    return ddp::ExportedModule(
        std::dynamic_pointer_cast<ddp::ExportedModuleImpl>(net->clone()));
  };
  auto copy = clone();
  {
    const torch::NoGradGuard no_grad;
    const auto other = clone();  // has memory of its own
    for (auto& parameter : other->parameters()) {
      parameter.add_(1);
    }
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto draws = generator.get_state();
  const auto loss = step_loss(name, net, inputs_of(steps)).item<double>();
  losses << loss << "\n";
  generator.set_state(draws);
  TORCH_CHECK(step_loss(name, copy, inputs_of(steps)).item<double>() == loss,
              "Expected the loss of a copy to be equal");
  ddp::save_state_dict(*net, path + ".trained" + of_rank);
  if (rank == 0) {
    net->save(path + ".saved.pt2");
  }
}

void train_all(const std::vector<std::string>& paths,
               int steps,
               int rank,
               int ranks) {
  torch::set_num_threads(1);
  if (ranks > 1) {
    ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  }
  for (const auto& path : paths) {
    try {
      train(path, steps, rank, ranks);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, path, ": ", error.what_without_backtrace());
    }
  }
  if (ranks > 1) {
    ddp::destroy_process_group();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: train_exported STEPS RANKS NAME.pt2...\n");
    return 2;
  }
  const int ranks = std::atoi(argv[2]);
  const auto train_rank = [&](int rank) {
    train_all({argv + 3, argv + argc}, std::atoi(argv[1]), rank, ranks);
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
