#pragma once

#include "launcher/cli/command_line.h"
#include "launcher/error.h"

namespace launcher {

/// --doctor and --json.
struct DoctorSwitches {
  bool is_on = false;
  bool as_json = false;

  /// @param line must not outlive this object
  void bind(CommandLine& line) {
    line.toggle(
        "doctor",
        "Starts no PROGRAM: tells what of this machine would keep such "
        "a job from running well, and what to do; ends with 1 where it "
        "would fail. With several hosts, started on each: also which of "
        "them cannot connect to which",
        [this] { is_on = true; });
    line.toggle("json", "--doctor writes JSON", [this] { as_json = true; });
  }

  /// @throws UsageError for --json alone
  void check() const {
    if (as_json && !is_on) {
      throw UsageError(
          "--json: expected --doctor beside it, but got a program to start; "
          "for a job's own report give --report-json FILE");
    }
  }
};

}  // namespace launcher
