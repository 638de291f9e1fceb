#include "launcher/job/report/report.h"

#include <algorithm>
#include <csignal>
#include <string_view>

#include "ddp/base/job_files/error_file.h"
#include "launcher/base/error.h"
#include "launcher/base/exit_status.h"
#include "launcher/base/overloaded.h"
#include "launcher/job/report/failure_text.h"
#include "launcher/job/report/hang_text.h"
#include "launcher/job/report/next_step.h"
#include "launcher/job/report/report_json.h"
#include "launcher/workers/error_file.h"

namespace launcher {
namespace {

Report failure_report(const AttemptResult& result, const WorkerExited& cause) {
  const WorkerExit* first = first_failure(result);
  Report report;
  report.exit_code = cause.status.shell_code();
  report.text =
      (first != nullptr ? "ddprun: " + cause_text(result, *first) : "") +
      others_text(result, first);
  return report;
}

Report failed(const std::string& text, int exit_code) {
  Report report;
  report.text = text;
  report.exit_code = exit_code;
  return report;
}

/// Describes the end by another host. Lists this host's workers only if one of
/// them also failed by itself.
Report closed_report(const AttemptResult& result, const JobClosed& closed) {
  if (closed.exit_code == 0) {
    return failed("", 0);
  }
  const auto& exits = result.workers.exits;
  const bool have_failed =
      std::any_of(exits.begin(), exits.end(), [](const WorkerExit& exit) {
        return exit.asked_by == 0 && !exit.status.is_success();
      });
  return failed("ddprun: " +
                    (closed.text.empty() ? "the job failed on another host"
                                         : closed.text) +
                    "\n" + (have_failed ? others_text(result, nullptr) : ""),
                closed.exit_code);
}

Report describe_result(const AttemptResult& result) {
  return std::visit(
      Overloaded{
          [](const std::monostate&) { return Report{}; },
          [&](const WorkerExited& exit) {
            return failure_report(result, exit);
          },
          [](const StartFailed& start) {
            return failed("ddprun: " + start.text + "\n", start.exit_code);
          },
          [&](const SignalReceived& signal) {
            return failed("ddprun: stopped by " + signal_name(signal.number) +
                              "\n" + others_text(result, nullptr),
                          128 + signal.number);
          },
          [](const WorldBroken& broken) {
            return failed(
                "ddprun: host " + broken.host + " " + text_of(broken.change) +
                    (broken.how.empty() ? "" : ": " + broken.how) + "\n",
                kExitFailure);
          },
          [](const RendezvousLost& lost) {
            return failed("ddprun: " + lost.text + "\n", kExitFailure);
          },
          [&](const WorkersHang& hangs) {
            return failed("ddprun: " + hang_report(result, hangs.hang),
                          128 + SIGKILL);
          },
          [&](const JobClosed& closed) {
            return closed_report(result, closed);
          },
      },
      result.cause);
}

/// Returns the first line without "ddprun: ", which starts each line on a
/// console.
std::string first_line_of(const Report& report) {
  constexpr std::string_view kOwnName = "ddprun: ";
  const std::string line = report.text.substr(0, report.text.find('\n'));
  return line.rfind(kOwnName, 0) == 0 ? line.substr(kOwnName.size()) : line;
}

/// Returns Report::error: the error file of the worker that failed first, with
/// its exit status added. If that worker left no error file, the first line of
/// the report is the message and the whole report is the call stack.
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

}  // namespace

std::string text_of(WorldBroken::Change change) {
  switch (change) {
    case WorldBroken::Change::joined:
      return "joined";
    case WorldBroken::Change::left:
      return "left";
    case WorldBroken::Change::vanished:
      return "vanished";
    case WorldBroken::Change::failed:
      break;
  }
  return "failed";
}

Report make_report(const AttemptResult& result) {
  Report report = describe_result(result);
  if (report.exit_code != 0) {
    report.text += next_step(result);
  }
  report.error = own_error(result, report);
  if (report.exit_code == 0) {
    report.exit_code = result.success_code;
  }
  report.json = attempt_json(result, report.exit_code);
  return report;
}

}  // namespace launcher
