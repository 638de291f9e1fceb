#include "launcher/options/program_options.h"

#include <utility>

#include "launcher/base/error.h"

namespace launcher {

void ProgramOptions::bind(CommandLine& line) {
  line.group("Program");
  line.toggle(
      "module",
      "Runs PROGRAM as `python -m` does",
      [this] { module_ = true; },
      "m");
  line.toggle("no-python",
              "Runs PROGRAM as it is, also when it ends in .py",
              [this] { no_python_ = true; });
  line.toggle("run-path",
              "Runs PROGRAM by Python, whatever its name and the other two",
              [this] { run_path_ = true; });
}

ProgramKind ProgramOptions::kind() const {
  if (run_path_) {
    return ProgramKind::python;
  }
  if (module_ && no_python_) {
    throw UsageError(
        "--module: expected to be without --no-python, but got both; leave "
        "one out");
  }
  return module_      ? ProgramKind::module
         : no_python_ ? ProgramKind::executable
                      : ProgramKind::by_name;
}

std::vector<std::string> program_of(std::vector<std::string> program,
                                    const CommandLine& line) {
  if (!program.empty() && program.front() == "--") {
    program.erase(program.begin());
  } else if (!program.empty() && program.front().size() > 1 &&
             program.front()[0] == '-') {
    throw UsageError("unknown option " + program.front() +
                     line.suggestion_for(program.front()) +
                     "; see ddprun --help (options of the program come after "
                     "its name)");
  } else if (program.size() > 1 && program[1] == "--") {
    // Python's argparse, and so torchrun, drops the first -- at both places.
    program.erase(program.begin() + 1);
  }
  if (program.empty() || program.front().empty()) {
    throw UsageError(
        "expected a program to start, but got none; for example: ddprun "
        "--nproc-per-node=4 ./train");
  }
  return program;
}

}  // namespace launcher
