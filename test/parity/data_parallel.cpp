// The C++ side of data_parallel.py. Reads the network's state, images, labels
// and the indices of each batch, trains over the given number of replicas on
// the CPU, and writes the final state and the results of forward.
//
// usage: parity data_parallel REPLICAS INPUT OUTPUT
#include <iostream>
#include <map>
#include <string>
#include <tuple>

#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/state_dict.h"
#include "dp/dp.h"
#include "test/parity/parity.h"

namespace parity {
namespace data_parallel_side {

using torch::Tensor;
namespace F = torch::nn::functional;

using Output =
    std::tuple<Tensor, std::map<std::string, std::vector<Tensor>>, Tensor>;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv = register_module(
        "conv",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).bias(false)));
    bn = register_module("bn", torch::nn::BatchNorm2d(8));
    fc = register_module("fc", torch::nn::Linear(8 * 6 * 6, 10));
  }

  Output forward(const std::vector<Tensor>& inputs, double scale) {
    const auto x = torch::tanh(bn(conv(inputs[0]))).flatten(1);
    const auto scores = fc(x) * scale;
    const auto rows = torch::full({1}, x.size(0), torch::kLong);
    const auto loss = F::cross_entropy(scores, inputs[1]);
    return {scores, {{"rows", {rows}}, {"features", {x, x * 2}}}, loss};
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

/// A dict in the format of torch.save.
using Dict = c10::Dict<c10::IValue, c10::IValue>;

ddp::StateDict read_state(const Dict& dict) {
  ddp::StateDict state;
  for (const auto& item : dict) {
    state.insert(item.key().toStringRef(), item.value().toTensor());
  }
  return state;
}

void train(size_t replicas, const std::string& from, const std::string& to) {
  const auto input = ddp::detail::read_torch_file(from).value.toGenericDict();
  Net net;
  ddp::load_state_dict(*net, read_state(input.at("state").toGenericDict()));
  dp::DataParallel model(
      net,
      dp::DataParallelOptions().devices(
          std::vector<torch::Device>(replicas, torch::kCPU)));
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.02).momentum(0.9));
  auto outputs = ddp::detail::new_list().toList();
  for (const auto& batch : input.at("batches").toListRef()) {
    const auto& indices = batch.toTensor();
    const auto [scores, more, losses] = model->forward(
        std::vector<Tensor>{
            input.at("images").toTensor().index_select(0, indices),
            input.at("labels").toTensor().index_select(0, indices)},
        0.5);
    optimizer.zero_grad();
    losses.sum().backward();
    optimizer.step();
    for (const auto& tensor :
         {scores, more.at("rows")[0], more.at("features")[1], losses}) {
      outputs.push_back(tensor.detach());
    }
  }
  auto state = ddp::detail::new_dict().toGenericDict();
  for (const auto& item : ddp::state_dict(*net)) {
    state.insert(item.key(), item.value());
  }
  auto result = ddp::detail::new_dict().toGenericDict();
  result.insert("state", state);
  result.insert("outputs", outputs);
  ddp::detail::write_torch_file(to, result);
}

}  // namespace data_parallel_side

int data_parallel(const Arguments& args) {
  if (args.size() != 3) {
    std::cerr << "usage: parity data_parallel REPLICAS INPUT OUTPUT\n";
    return 2;
  }
  data_parallel_side::train(std::stoul(args[0]), args[1], args[2]);
  return 0;
}

}  // namespace parity
