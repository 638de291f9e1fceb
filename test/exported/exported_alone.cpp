// A program without ranks, which links ddp::exported alone: trains the file of
// export_net.py for a step.
#include <ddp/exported_module.h>
#include <torch/optim/sgd.h>

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  ddp::ExportedModule net(argv[1]);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto loss = [&net] {
    return net->forward(torch::ones({8, 6})).toTensor().square().mean();
  };
  net->eval();
  const auto before = loss();
  before.backward();
  optimizer.step();
  return loss().item<double>() < before.item<double>() ? 0 : 1;
}
