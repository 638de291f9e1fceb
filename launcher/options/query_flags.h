#pragma once

#include "launcher/base/error.h"
#include "launcher/options/command_line.h"
#include "launcher/options/program_options.h"
#include "launcher/options/status_options.h"

namespace launcher {

/// --doctor, --status and their --json: queries that do not start a job.
struct QueryFlags {
  bool is_doctor = false;
  bool is_status = false;
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
    line.toggle(
        "status",
        "Starts nothing: tells what your jobs on this machine are doing, or in "
        "PROGRAM's place the id of one, or its process",
        [this] { is_status = true; });
    line.toggle(
        "json", "--doctor and --status write JSON", [this] { as_json = true; });
  }

  /// @throws UsageError for --json without a query, and for both queries
  void check() const {
    if (as_json && !is_doctor && !is_status) {
      throw UsageError(
          "--json: expected --doctor or --status beside it, but got a program "
          "to start; for a job's own report give --report-json FILE");
    }
    if (is_doctor && is_status) {
      throw UsageError(
          "--status: expected to be without --doctor, but got both; leave one "
          "out");
    }
  }

  /// Returns the options of --status.
  ///
  /// @param rest arguments after the options: none, a job, or a job and --json
  /// @throws UsageError for any other arguments
  StatusOptions status_of(std::vector<std::string> rest,
                          const CommandLine& line) const {
    StatusOptions status{{}, as_json};
    if (rest.empty()) {
      return status;
    }
    rest = program_of(std::move(rest), line);
    status.job = rest.front();
    for (size_t index = 1; index < rest.size(); ++index) {
      if (rest[index] != "--json") {
        throw UsageError("--status: expected one job at most, but got " +
                         status.job + " and " + rest[index]);
      }
      status.as_json = true;
    }
    return status;
  }
};

}  // namespace launcher
