#pragma once

#include "launcher/options/command_line.h"
#include "launcher/options/options.h"

namespace launcher {

/// The options about what workers read and write, and where it is kept.
///
/// @param line must not outlive `options`
void bind_output(CommandLine& line, LaunchOptions& options);

/// @throws UsageError for --tee beside --output=inherit
void check_output(const LaunchOptions& options);

}  // namespace launcher
