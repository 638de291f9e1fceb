#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/report/report.h"
#include "launcher/job/report/report_json.h"

namespace launcher {

/// Writes a job's state and its reports to files.
class ReportFiles {
 public:
  struct Places {
    std::string error;  ///< ddprun's own error file; empty: none
    std::string json;   ///< --report-json; empty: none
  };
  using Teller = std::function<void(const std::string& line)>;

  /// Writes the JSON of a running job, so that an unwritable path is detected
  /// before the training runs.
  ///
  /// @param warn receives a line about each later write error
  /// @throws LaunchError if the JSON cannot be written
  ReportFiles(Places places, JobFacts facts, Teller warn);

  /// Replaces the state of the job in the JSON, until finish().
  void update(JobState state);

  /// Adds the report of a finished attempt to the JSON. With very many
  /// attempts, keeps the first and the last ones.
  void add(const Report& report);

  /// Writes the final state, taken from the last report. A failure replaces the
  /// contents of the error file.
  void finish();

 private:
  int write_json(std::optional<int> exit_code);

  Places places_;
  JobFacts facts_;
  Teller warn_;
  JobState state_;
  std::vector<std::string> attempts_;
  std::string written_;  // the JSON in the file
  bool has_finished_ = false;
  Report last_;
};

}  // namespace launcher
