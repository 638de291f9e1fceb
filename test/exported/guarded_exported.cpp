// Runs exported models, and prints a line for each call: "ok" or its error.
//
//   guarded_exported FILE.pt2...
//
// FILE.pt2.calls is a file of torch.save: a list of tuples of the arguments and
// the keyword arguments.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include <torch/torch.h>

#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/exported_module.h"

namespace {

void run(const std::string& path) {
  const auto calls = ddp::detail::read_torch_file(path + ".calls").value;
  ddp::ExportedModule net(path);
  for (const auto& call : calls.toListRef()) {
    const auto& parts = call.toTupleRef().elements();
    ddp::ExportedModuleImpl::Kwargs kwargs;
    for (const auto& entry : parts[1].toGenericDict()) {
      kwargs[entry.key().toStringRef()] = entry.value();
    }
    std::string result = "ok";
    try {
      net->forward(parts[0].toTupleRef().elements().vec(), kwargs);
    } catch (const c10::Error& error) {
      result = error.what_without_backtrace();
    }
    std::replace(result.begin(), result.end(), '\n', ' ');
    std::printf("%s\n", result.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  for (int i = 1; i < argc; ++i) {
    try {
      run(argv[i]);
    } catch (const c10::Error& error) {
      std::fprintf(stderr, "%s\n", error.what_without_backtrace());
      return 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
}
