#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/report/report.h"
#include "launcher/job/report/report_json.h"

namespace launcher {

/// The files that a job's reports go to, beside the console.
class ReportFiles {
 public:
  struct Places {
    std::string error;  ///< ddprun's own error file; empty: none
    std::string json;   ///< --report-json; empty: none
  };
  using Teller = std::function<void(const std::string& line)>;

  /// Writes the JSON of a job that runs, so that a place where nothing can be
  /// written is seen before a training has gone by.
  ///
  /// @param warn gets a line about what cannot be written later
  /// @throws LaunchError when the JSON cannot be written
  ReportFiles(Places places, JobFacts facts, Teller warn);

  /// An attempt is over. The JSON has it from now on; of very many the first
  /// and the last ones.
  void add(const Report& report);

  /// The job is over, as the last report says: a failure goes into the error
  /// file, in place of what was there.
  void finish();

 private:
  int write_json(std::optional<int> exit_code) const;

  Places places_;
  JobFacts facts_;
  Teller warn_;
  std::vector<std::string> attempts_;
  Report last_;
};

}  // namespace launcher
