#pragma once

#include <string>
#include <vector>

#include "launcher/options/command_line.h"
#include "launcher/options/options.h"

namespace launcher {

/// The switches that say how PROGRAM is started.
class ProgramOptions {
 public:
  /// @param line must not outlive this object
  void bind(CommandLine& line);

  /// --run-path wins over the other two, as in torchrun.
  ///
  /// @throws UsageError for --module beside --no-python
  ProgramKind kind() const;

 private:
  bool module_ = false;
  bool no_python_ = false;
  bool run_path_ = false;
};

/// The program and its arguments, of what is left of a command line when its
/// options have been read.
///
/// @throws UsageError when there is none, or an option that is none of ours
std::vector<std::string> program_of(std::vector<std::string> rest,
                                    const CommandLine& line);

}  // namespace launcher
