#include "launcher/job/report_files.h"

#include <system_error>
#include <utility>

#include "ddp/base/cluster/worker_env.h"
#include "ddp/base/job_files/error_file.h"
#include "launcher/base/error.h"

namespace launcher {
namespace {

constexpr size_t kMostAttempts = 100;

std::string cannot_write(const std::string& file, int error) {
  return file + " cannot be written (" +
         std::generic_category().message(error) + ")";
}

}  // namespace

ReportFiles::ReportFiles(Places places, JobFacts facts, Teller warn)
    : places_(std::move(places)),
      facts_(std::move(facts)),
      warn_(std::move(warn)) {
  if (const int error = write_json(std::nullopt)) {
    throw LaunchError(kExitFailure,
                      "--report-json: " + cannot_write(places_.json, error) +
                          "; give a file in a folder that can be written to");
  }
}

int ReportFiles::write_json(std::optional<int> exit_code) {
  if (places_.json.empty()) {
    return 0;
  }
  std::string text = job_json(facts_, state_, attempts_, exit_code);
  if (text == written_) {
    return 0;
  }
  const int error = ddp::detail::write_error_file(places_.json, text);
  written_ = error == 0 ? std::move(text) : "";
  return error;
}

void ReportFiles::update(JobState state) {
  if (!has_finished_) {
    state_ = std::move(state);
    write_json(std::nullopt);  // finish() reports write errors
  }
}

void ReportFiles::add(const Report& report) {
  last_ = report;
  if (attempts_.size() == kMostAttempts) {
    attempts_.erase(attempts_.begin() + 1);
  }
  attempts_.push_back(report.json);
  write_json(std::nullopt);  // finish() reports write errors
}

void ReportFiles::finish() {
  has_finished_ = true;
  state_.phase = Policy::Phase::done;
  state_.workers.clear();  // the attempt has them
  if (const int error = write_json(last_.exit_code)) {
    warn_(cannot_write(places_.json, error));
  }
  if (places_.error.empty() || last_.error.empty()) {
    return;
  }
  if (const int error =
          ddp::detail::write_error_file(places_.error, last_.error)) {
    warn_(cannot_write(std::string(ddp::env::kErrorFile) + "=" + places_.error,
                       error));
  }
}

}  // namespace launcher
