#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/plan/plan.h"
#include "launcher/workers/output/output_thread.h"
#include "launcher/workers/output/run_directory.h"

namespace launcher {

/// Writes filtered_stdout.log or filtered_stderr.log: the whole lines of
/// several workers that contain one of the given texts, each with its prefix.
class FilteredLog {
 public:
  /// @param texts a line must contain at least one of them; plain substrings,
  ///   not patterns
  FilteredLog(OutputFile file, std::vector<std::string> texts);

  /// Writes the line if it contains one of the texts.
  void write_if_matching(std::string_view prefix, std::string_view line);

  /// Closes the file after the pending writes.
  void finish() { file_.finish(); }
  bool is_congested() const { return file_.is_congested(); }

 private:
  OutputFile file_;
  std::vector<std::string> texts_;
};

/// The two filtered logs of an attempt, if requested.
struct FilteredLogs {
  std::optional<FilteredLog> out;
  std::optional<FilteredLog> err;

  /// Finishes the logs that exist.
  void finish();
};

/// Takes the files of the plan's filtered logs.
///
/// @param thread must outlive the result
FilteredLogs make_filtered_logs(const LaunchPlan& plan,
                                AttemptFiles& files,
                                OutputThread& thread);

}  // namespace launcher
