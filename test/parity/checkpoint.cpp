// The C++ side of checkpoint.py:
//   train OPTIMIZER DATA IN OUT   resume from IN ("-": do not), train on every
//                                 batch of DATA, save OUT
//   copy IN OUT                   read a file of torch.save and write it again
//   copies IN...                  copy each file; print a line for each:
//                                 "copied", or the error
//   fit IN...                     load each file into the model alone; print a
//                                 line for each: "fits", or the error
#include <iostream>
#include <memory>
#include <string>

#include <torch/nn.h>
#include <torch/optim.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/checkpoint.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "test/parity/parity.h"

namespace parity {
namespace checkpoint_side {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("bn", bn);
    register_module("fc", fc);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(bn(conv(x)));
    return fc(x.mean({2, 3}));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 4, 3).bias(false)};
  torch::nn::BatchNorm2d bn{4};
  torch::nn::Linear fc{4, 3};
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<torch::Tensor>& params) {
  using namespace torch::optim;
  if (name == "sgd") {
    return std::make_unique<SGD>(params, SGDOptions(0.1));
  }
  if (name == "sgd_momentum") {
    return std::make_unique<SGD>(params, SGDOptions(0.1).momentum(0.9));
  }
  if (name == "adam") {
    return std::make_unique<Adam>(params, AdamOptions(0.01).amsgrad(true));
  }
  if (name == "adamw") {
    return std::make_unique<AdamW>(params, AdamWOptions(0.01));
  }
  if (name == "rmsprop") {
    return std::make_unique<RMSprop>(
        params, RMSpropOptions(0.01).momentum(0.9).centered(true));
  }
  TORCH_CHECK(name == "adagrad", "unknown optimizer ", name);
  return std::make_unique<Adagrad>(params, AdagradOptions(0.1));
}

void train(const std::string& name,
           const std::string& data,
           const std::string& from,
           const std::string& to) {
  Net net;
  const auto optimizer = make_optimizer(name, net->parameters());
  ddp::Checkpoint checkpoint(net);
  ddp::GradScaler scaler;
  checkpoint.add("optimizer", *optimizer).add("scaler", scaler);
  if (from != "-") {
    checkpoint.load(from);
  }
  const auto file = ddp::detail::read_torch_file(data);
  const auto batches = file.value.toListRef();
  for (const auto& batch : batches) {
    optimizer->zero_grad();
    scaler.scale(net->forward(batch.toTensor()).pow(2).mean()).backward();
    scaler.step(*optimizer);
    scaler.update();
    checkpoint.step(checkpoint.step() + 1);
  }
  checkpoint.epoch(checkpoint.epoch() + 1).save(to);
  std::cout << torch::rand({1}, torch::kDouble).item<double>();
}

void copy(const std::string& from, const std::string& to) {
  ddp::detail::write_torch_file(to, ddp::detail::read_torch_file(from).value);
}

/// Calls `work` with each file and prints a line for each: `done`, or its
/// error.
template <class Work>
void answer(const std::vector<std::string>& args,
            const char* done,
            const Work& work) {
  for (size_t i = 1; i < args.size(); ++i) {
    std::string text = done;
    try {
      work(args[i]);
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    std::cout << text << '\n';
  }
}

}  // namespace checkpoint_side

int checkpoint(const Arguments& args) {
  using namespace checkpoint_side;
  std::cout.precision(17);
  try {
    if (args.size() == 5 && args[0] == "train") {
      train(args[1], args[2], args[3], args[4]);
    } else if (args.size() == 3 && args[0] == "copy") {
      copy(args[1], args[2]);
    } else if (args.size() >= 2 && args[0] == "copies") {
      answer(args, "copied", [](const std::string& path) {
        copy(path, path + ".copy");
      });
    } else if (args.size() >= 2 && args[0] == "fit") {
      answer(args, "fits", [](const std::string& path) {
        ddp::load_state_dict(*Net(), path);
      });
    } else {
      std::cerr << "unknown arguments\n";
      return 2;
    }
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  }
  return 0;
}

}  // namespace parity
