#include "samples/support/command_line.h"

#include <CLI/CLI.hpp>
#include <iostream>

namespace samples {
namespace {

constexpr int kUsageError = 2;

}  // namespace

void add_device_options(CLI::App& app, DeviceOptions& device) {
  app.add_option("--backend",
                 device.backend,
                 "nccl or gloo (nccl where there is a GPU)")
      ->check(CLI::IsMember({"nccl", "gloo"}));
  auto* gpus =
      app.add_option("--gpus",
                     device.gpus,
                     "GPU ids, one for each rank of this host (0,1,..)")
          ->delimiter(',');
  app.add_flag("--no-cuda", device.no_cuda, "Compute on the CPU, with gloo")
      ->excludes(gpus);
}

std::optional<int> parse_command_line(CLI::App& app,
                                      int argc,
                                      const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    std::cerr << app.get_name() + ": " + error.what() +
                     " --help lists the options.\n";
    return kUsageError;
  }
}

}  // namespace samples
