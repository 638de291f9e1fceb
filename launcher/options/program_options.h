#pragma once

#include <string>
#include <vector>

#include "launcher/options/command_line.h"
#include "launcher/options/options.h"

namespace launcher {

/// Switches that choose how PROGRAM is started.
class ProgramOptions {
 public:
  /// Adds the switches to the command line.
  ///
  /// @param line must not outlive this object
  void bind(CommandLine& line);

  /// Returns the chosen kind. --run-path wins over the other two, as in
  /// torchrun.
  ///
  /// @throws UsageError for --module together with --no-python
  ProgramKind kind() const;

 private:
  bool module_ = false;
  bool no_python_ = false;
  bool run_path_ = false;
};

/// Returns the program and its arguments from the rest of a command line after
/// its options.
///
/// @throws UsageError if there is no program, or for an unknown option
std::vector<std::string> program_of(std::vector<std::string> rest,
                                    const CommandLine& line);

}  // namespace launcher
