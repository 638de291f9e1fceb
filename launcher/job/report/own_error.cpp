#include "launcher/job/report/own_error.h"

#include <optional>
#include <string_view>

#include "ddp/base/job_files/error_file.h"
#include "launcher/job/report/failure_text.h"
#include "launcher/workers/progress/error_file.h"

namespace launcher {
namespace {

/// Returns the first line without "ddprun: ", which starts each line on a
/// console.
std::string first_line_of(const Report& report) {
  constexpr std::string_view kOwnName = "ddprun: ";
  const std::string line = report.text.substr(0, report.text.find('\n'));
  return line.rfind(kOwnName, 0) == 0 ? line.substr(kOwnName.size()) : line;
}

}  // namespace

std::string own_error(const AttemptResult& result, const Report& report) {
  if (report.exit_code == 0) {
    return "";
  }
  const WorkerExit* first = first_failure(result);
  if (first != nullptr) {
    if (auto json = handed_on(first->error, first->status)) {
      return *json;
    }
  }
  ddp::detail::ErrorRecord record;
  record.message = first_line_of(report);
  record.callstack = report.text;
  record.time = result.time;
  record.exit_code =
      first != nullptr ? first->status.error_code() : report.exit_code;
  return ddp::detail::to_json(record);
}

}  // namespace launcher
