// Runs the forward of one network as an ExportedModule and as a TorchScript
// module: the arms "exported" and "torchscript" of exported.py.
#include <iostream>
#include <string>

#include <torch/script.h>
#include <torch/torch.h>

#include "ddp/exported_module.h"
#include "test/bench/blocks.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: bench_exported FILE.pt2 FILE.pt\n";
    return 2;
  }
  torch::set_num_threads(1);
  ddp::ExportedModule exported(argv[1]);
  auto script = torch::jit::load(argv[2]);
  const auto input = torch::arange(27).remainder(20).view({3, 9});
  ddp::bench::run_blocks([&](const std::string& arm) -> ddp::bench::Step {
    if (arm == "exported") {
      return [&] { exported->forward(input); };
    }
    return [&] { script.forward({input}); };
  });
}
