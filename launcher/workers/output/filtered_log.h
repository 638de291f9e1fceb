#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/plan/plan.h"
#include "launcher/workers/output/log_file.h"

namespace launcher {

/// filtered_stdout.log or filtered_stderr.log: whole lines of several workers,
/// each with its prefix, that hold one of some texts.
class FilteredLog {
 public:
  /// @param texts of which a line holds at least one; they are no patterns
  FilteredLog(LogFile file, std::vector<std::string> texts);

  /// Writes the line if it holds one of the texts.
  void take(std::string_view prefix, std::string_view line);

  /// No more comes.
  void finish() { file_.finish(); }
  bool is_congested() const { return file_.is_congested(); }

 private:
  LogFile file_;
  std::vector<std::string> texts_;
};

/// The two of an attempt, where they are asked for.
struct FilteredLogs {
  std::optional<FilteredLog> out;
  std::optional<FilteredLog> err;

  /// Finishes those that are there.
  void finish();
};

/// Makes the files that the plan names, with their folder.
///
/// @param writer must outlive them
/// @throws LaunchError when one cannot be made
FilteredLogs make_filtered_logs(const LaunchPlan& plan, LogWriter& writer);

}  // namespace launcher
