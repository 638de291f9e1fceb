// Runs the forward of one network as an ExportedModule and as a TorchScript
// module, in blocks that exported.py asks for: "exported 100" or
// "torchscript 100".
#include <chrono>
#include <iostream>
#include <string>

#include <torch/script.h>
#include <torch/torch.h>

#include "ddp/exported_module.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: bench_exported FILE.pt2 FILE.pt\n";
    return 2;
  }
  torch::set_num_threads(1);
  ddp::ExportedModule exported(argv[1]);
  auto script = torch::jit::load(argv[2]);
  const auto input = torch::arange(27).remainder(20).view({3, 9});
  std::string name;
  int64_t steps = 0;
  while (std::cin >> name >> steps) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      name == "exported" ? exported->forward(input) : script.forward({input});
    }
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - start;
    std::cout << time.count() << std::endl;
  }
}
