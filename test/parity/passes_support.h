#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/accumulate.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "ddp/ddp.h"

// Networks, logs and the runner of the cases of passes.cpp and precision.cpp.
namespace parity::passes_side {

/// Returns numbers in closed form, exact in binary.
inline torch::Tensor numbers(at::IntArrayRef shape, int64_t seed) {
  const auto indices = torch::arange(c10::multiply_integers(shape));
  return ((indices * 7 + seed * 5).remainder(17) - 8)
      .to(torch::kDouble)
      .div(16)
      .view(shape);
}

// Returns the inputs of this rank.
inline torch::Tensor inputs(int64_t step) {
  return numbers({4, 3}, 10 * step + 3 * ddp::rank());
}

inline torch::Tensor others(int64_t step) {
  return numbers({4, 3}, 9 * step + 2 * ddp::rank() + 5);
}

inline torch::Tensor targets(int64_t step) {
  return numbers({4, 2}, 6 * step + 4 * ddp::rank() + 1);
}

/// Fills each parameter with different numbers.
inline void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(numbers(parameter.sizes(), seed++));
  }
}

inline void require_grad(torch::nn::Module& module, bool required) {
  for (auto& parameter : module.parameters()) {
    parameter.requires_grad_(required);
  }
}

enum class Norm { none, batch };

struct NetImpl : torch::nn::Module {
  explicit NetImpl(Norm kind,
                   const torch::nn::LinearOptions& last_options = {4, 2}) {
    register_module("first", first);
    if (kind == Norm::batch) {
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
    }
    last = register_module("last", torch::nn::Linear(last_options));
    to(torch::kDouble);
    fill(*this);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    return last(torch::tanh(norm ? norm(x) : x));
  }

  torch::nn::Linear first{3, 4};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Net);

/// One weight with two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_module("encoder", layer);
    register_module("decoder", layer);
    to(torch::kDouble);
    fill(*layer);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return layer(torch::tanh(layer(x)));
  }

  torch::nn::Linear layer{torch::nn::LinearOptions(3, 3).bias(false)};
};
TORCH_MODULE(Tied);

/// A network, its wrapper and its optimizer.
template <typename N>
struct Trained {
  explicit Trained(N made,
                   const ddp::DistributedDataParallelOptions& options = {})
      : net(std::move(made)), model(net, options) {}

  void train(const torch::Tensor& input, const torch::Tensor& target) {
    optimizer.zero_grad();
    torch::mse_loss(model->forward(input), target).backward();
    optimizer.step();
  }

  N net;
  ddp::DistributedDataParallel<typename N::ContainedType> model;
  torch::optim::SGD optimizer{model->parameters(), 0.0625};
};

/// A log with one line per tensor: "case/step/kind name: number number ...".
class Log {
 public:
  explicit Log(const std::filesystem::path& file) : file_(file) {
    file_ << std::setprecision(17);
  }

  void begin(const std::string& name) {
    case_ = name;
    step_ = 0;
  }

  void note(const std::string& name, const torch::Tensor& values) {
    write("note " + name, values);
  }

  /// Writes parameters and buffers, and ends the step. With several networks,
  /// names are prefixed by a number.
  template <typename... Nets>
  void state(const Nets&... nets) {
    const std::vector<const torch::nn::Module*> all{nets.ptr().get()...};
    for (size_t i = 0; i < all.size(); ++i) {
      const auto number = all.size() > 1 ? std::to_string(i) + "." : "";
      for (const auto& item : all[i]->named_parameters()) {
        write("parameter " + number + item.key(), item.value());
      }
      for (const auto& item : all[i]->named_buffers()) {
        write("buffer " + number + item.key(), item.value());
      }
    }
    ++step_;
  }

  /// Writes the first line of the error that `run` throws.
  template <typename Function>
  void error(const Function& run) {
    try {
      run();
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      start("error") << text.substr(0, text.find('\n')) << std::endl;
      return;
    }
    TORCH_CHECK(false, "Expected an error of ", case_, ", but got none");
  }

 private:
  std::ostream& start(const std::string& what) {
    return file_ << case_ << '/' << step_ << '/' << what << ": ";
  }

  void write(const std::string& what, const torch::Tensor& tensor) {
    const auto values = tensor.detach().to(torch::kDouble).flatten();
    auto& line = start(what);
    const char* space = "";
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double value = values.const_data_ptr<double>()[i];
      line << std::exchange(space, " ");
      std::isnan(value) ? line << "nan" : line << value;  // without its sign
    }
    line << std::endl;
  }

  std::ofstream file_;
  std::string case_;
  int64_t step_ = 0;
};

struct Case {
  std::string name;
  void (*run)(Log&);
};

/// Runs the named cases on this rank, or all cases.
/// @param args  the folder for the logs, one log per rank; then names.
inline int run_cases(const std::vector<std::string>& args,
                     const std::vector<Case>& cases) {
  constexpr std::chrono::seconds kCollectiveLimit(10);
  constexpr unsigned kSecondsOfACase = 20;
  if (args.empty()) {
    std::cerr << "usage: parity SIDE FOLDER [CASE...]\n";
    return 2;
  }
  const std::vector<std::string> chosen(args.begin() + 1, args.end());
  ddp::init_process_group(ddp::ProcessGroupOptions().timeout(kCollectiveLimit));
  Log log(std::filesystem::path(args[0]) / std::to_string(ddp::rank()));
  for (const auto& [name, run] : cases) {
    if (chosen.empty() ||
        std::find(chosen.begin(), chosen.end(), name) != chosen.end()) {
      // If a case hangs, this is the last line before SIGALRM.
      std::cerr << "case " << name << '\n';
      alarm(kSecondsOfACase);
      log.begin(name);
      run(log);
    }
  }
  ddp::destroy_process_group();
  alarm(0);
  return 0;
}

}  // namespace parity::passes_side
