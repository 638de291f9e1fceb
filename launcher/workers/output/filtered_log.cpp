#include "launcher/workers/output/filtered_log.h"

#include <algorithm>
#include <utility>

namespace launcher {
namespace {

std::optional<FilteredLog> make_filtered_log(const LineFilter& filter,
                                             Fd& file,
                                             OutputThread& thread) {
  if (!file) {
    return std::nullopt;
  }
  return FilteredLog(OutputFile(std::move(file), filter.path, thread),
                     filter.texts);
}

}  // namespace

FilteredLog::FilteredLog(OutputFile file, std::vector<std::string> texts)
    : file_(std::move(file)), texts_(std::move(texts)) {}

void FilteredLog::write_if_matching(std::string_view prefix,
                                    std::string_view line) {
  const bool holds_one =
      std::any_of(texts_.begin(), texts_.end(), [line](const auto& text) {
        return line.find(text) != std::string_view::npos;
      });
  if (holds_one) {
    file_.write(std::string(prefix).append(line).append("\n"));
  }
}

void FilteredLogs::finish() {
  for (auto* log : {&out, &err}) {
    if (*log) {
      (*log)->finish();
    }
  }
}

FilteredLogs make_filtered_logs(const LaunchPlan& plan,
                                AttemptFiles& files,
                                OutputThread& thread) {
  return {make_filtered_log(plan.filtered_out, files.filtered_out, thread),
          make_filtered_log(plan.filtered_err, files.filtered_err, thread)};
}

}  // namespace launcher
