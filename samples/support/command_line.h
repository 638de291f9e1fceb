#pragma once

#include <optional>

#include "samples/support/device.h"

namespace CLI {
class App;
}

namespace samples {

/// Adds --backend, --gpus and --no-cuda.
void add_device_options(CLI::App& app, DeviceOptions& device);

/// Reads the command line of a sample whose options are in `app`.
///
/// @returns the exit code when the program is to end now: 0 after printing the
///   help, 2 after one line on standard error about a wrong option.
///
/// Example:
/// @code
///   CLI::App app("Says hello.", "hello");
///   if (const auto code = samples::parse_command_line(app, argc, argv)) {
///     return *code;
///   }
/// @endcode
std::optional<int> parse_command_line(CLI::App& app,
                                      int argc,
                                      const char* const* argv);

}  // namespace samples
