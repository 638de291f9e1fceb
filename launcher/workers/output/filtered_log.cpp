#include "launcher/workers/output/filtered_log.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "launcher/workers/output/run_directory.h"

namespace launcher {
namespace {

std::optional<FilteredLog> make_filtered_log(const LineFilter& filter,
                                             OutputThread& thread) {
  if (filter.path.empty()) {
    return std::nullopt;
  }
  make_attempt_folder(std::filesystem::path(filter.path).parent_path());
  return FilteredLog(OutputFile(create_log(filter.path), filter.path, thread),
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

FilteredLogs make_filtered_logs(const LaunchPlan& plan, OutputThread& thread) {
  return {make_filtered_log(plan.filtered_out, thread),
          make_filtered_log(plan.filtered_err, thread)};
}

}  // namespace launcher
