#pragma once

#include "launcher/options/command_line.h"
#include "launcher/options/options.h"

namespace launcher {

/// Adds the options about the workers' input, output and log files.
///
/// @param line must not outlive `options`
void bind_output(CommandLine& line, LaunchOptions& options);

/// @throws UsageError for --tee together with --output=inherit
void check_output(const LaunchOptions& options);

}  // namespace launcher
