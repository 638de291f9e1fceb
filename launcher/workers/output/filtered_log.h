#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/plan/plan.h"
#include "launcher/workers/output/output_thread.h"

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

/// Creates the files that the plan names, and their folder.
///
/// @param thread must outlive the result
/// @throws LaunchError if a file cannot be created
FilteredLogs make_filtered_logs(const LaunchPlan& plan, OutputThread& thread);

}  // namespace launcher
