// Trains an exported model as zoo_test.py does in Python:
//
//   train_exported NAME FILE.pt2 STEPS
//   train_exported damaged FILE.pt2...     loads and runs each, prints its
//   error
//
// Reads the inputs of each step from FILE.pt2.inputs, prints the losses of the
// steps and that of an evaluation, and writes the trained values to
// FILE.pt2.trained and, as a program, to FILE.pt2.saved.pt2.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/checkpoint/state_dict.h"
#include "ddp/exported_module.h"

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

torch::Tensor step_loss(const std::string& name,
                        ddp::ExportedModule& net,
                        std::vector<torch::Tensor> inputs) {
  if (name == "energy") {
    auto positions = inputs[0].detach().requires_grad_();
    const auto energy = net->forward(positions).toTensor();
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
    return loss_of(net->forward(
        Values{inputs[0],
               c10::ivalue::Tuple::create({inputs[1], c10::IValue(more)})},
        {{"scale", 2.0}}));
  }
  return loss_of(net->forward(Values(inputs.begin(), inputs.end())));
}

void train(const std::string& name, const std::string& path, int steps) {
  ddp::ExportedModule net(path);
  const auto all = ddp::detail::to_state_dict(
      ddp::detail::read_torch_file(path + ".inputs").value);
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
  torch::manual_seed(1);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss = step_loss(name, net, inputs_of(step));
    loss.backward();
    optimizer.step();
    std::printf("%.17g\n", loss.item<double>());
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
  std::printf("%.17g\n", loss);
  generator.set_state(draws);
  TORCH_CHECK(step_loss(name, copy, inputs_of(steps)).item<double>() == loss,
              "Expected the loss of a copy to be equal");
  ddp::save_state_dict(*net, path + ".trained");
  net->save(path + ".saved.pt2");
}

/// Loads a file, and runs it on inputs of ones. Returns the error, or "".
std::string error_of(const std::string& path) {
  try {
    ddp::ExportedModule net(path);
    net->forward(torch::ones({8, 6}));
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

int try_damaged(int count, char** paths) {
  for (int i = 0; i < count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    auto error = error_of(paths[i]);
    std::replace(error.begin(), error.end(), '\n', ' ');
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    std::printf("%.3f %s\n", taken.count(), error.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  if (argc > 2 && std::string(argv[1]) == "damaged") {
    return try_damaged(argc - 2, argv + 2);
  }
  if (argc != 4) {
    std::fprintf(stderr, "usage: train_exported NAME FILE.pt2 STEPS\n");
    return 2;
  }
  try {
    train(argv[1], argv[2], std::atoi(argv[3]));
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
