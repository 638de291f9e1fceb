#include "launcher/job/report_files.h"

#include <system_error>
#include <utility>

#include "ddp/base/cluster/worker_env.h"
#include "launcher/base/error.h"

namespace launcher {
namespace {

constexpr size_t kMostAttempts = 100;

}  // namespace

ReportFiles::ReportFiles(Places places,
                         JobFacts facts,
                         EventLoop& loop,
                         DroppedOutput& losses)
    : places_(std::move(places)),
      facts_(std::move(facts)),
      thread_(loop, losses) {
  write_json(std::nullopt);
  thread_.drain();
  if (const int error = losses.error_of(places_.json)) {
    throw LaunchError(kExitFailure,
                      "--report-json: " + places_.json +
                          " cannot be written (" +
                          std::generic_category().message(error) +
                          "); give a file in a folder that can be written to");
  }
}

void ReportFiles::write_json(std::optional<int> exit_code) {
  if (places_.json.empty()) {
    return;
  }
  std::string text = job_json(facts_, state_, attempts_, exit_code);
  if (text != written_) {
    thread_.replace(places_.json, places_.json, text);
    written_ = std::move(text);
  }
}

void ReportFiles::update(JobState state) {
  if (!has_finished_) {
    state_ = std::move(state);
    write_json(std::nullopt);
  }
}

void ReportFiles::add(const Report& report) {
  last_ = report;
  if (attempts_.size() == kMostAttempts) {
    attempts_.erase(attempts_.begin() + 1);
  }
  attempts_.push_back(report.json);
  write_json(std::nullopt);
}

void ReportFiles::finish() {
  has_finished_ = true;
  state_.phase = Policy::Phase::done;
  state_.workers.clear();  // the attempt has them
  write_json(last_.exit_code);
  if (!places_.error.empty() && !last_.error.empty()) {
    thread_.replace(places_.error,
                    std::string(ddp::env::kErrorFile) + "=" + places_.error,
                    last_.error);
  }
}

}  // namespace launcher
