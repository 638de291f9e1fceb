#pragma once

#include "launcher/base/error.h"
#include "launcher/options/command_line.h"

namespace launcher {

/// --doctor and its --json: a query that does not start a job.
struct QueryFlags {
  bool is_doctor = false;
  bool as_json = false;

  /// Adds the flags to the command line.
  ///
  /// @param line must not outlive this object
  void bind(CommandLine& line) {
    line.toggle(
        "doctor",
        "Starts no PROGRAM: tells what of this machine would keep such "
        "a job from running well, and what to do; ends with 1 where it "
        "would fail. With several hosts, started on each: also which of "
        "them cannot connect to which",
        [this] { is_doctor = true; });
    line.toggle("json", "--doctor writes JSON", [this] { as_json = true; });
  }

  /// @throws UsageError for --json without --doctor
  void check() const {
    if (as_json && !is_doctor) {
      throw UsageError(
          "--json: expected --doctor beside it, but got a program to start; "
          "for a job's own report give --report-json FILE");
    }
  }
};

}  // namespace launcher
