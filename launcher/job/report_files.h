#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/job/report/report.h"
#include "launcher/job/report/report_json.h"
#include "launcher/workers/output/output_thread.h"

namespace launcher {

/// Writes a job's state and its reports to files, on a thread of their own.
class ReportFiles {
 public:
  struct Places {
    std::string error;  ///< ddprun's own error file; empty: none
    std::string json;   ///< --report-json; empty: none
  };

  /// Writes the JSON of a running job, so that an unwritable path is detected
  /// before the training runs. Waits for a short time only.
  ///
  /// @param losses records later write errors; must outlive this object
  /// @throws LaunchError if the JSON cannot be written
  ReportFiles(Places places,
              JobFacts facts,
              EventLoop& loop,
              DroppedOutput& losses);

  /// Replaces the state of the job in the JSON, until finish().
  void update(JobState state);

  /// Adds the report of a finished attempt to the JSON. With very many
  /// attempts, keeps the first and the last ones.
  void add(const Report& report);

  /// Writes the final state, taken from the last report. A failure replaces the
  /// contents of the error file.
  void finish();

  OutputThread& thread() { return thread_; }

 private:
  void write_json(std::optional<int> exit_code);

  Places places_;
  JobFacts facts_;
  OutputThread thread_;
  JobState state_;
  std::vector<std::string> attempts_;
  std::string written_;  // the last JSON
  bool has_finished_ = false;
  Report last_;
};

}  // namespace launcher
