#include "launcher/job/status/status_json.h"

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "launcher/base/signal_names.h"

namespace launcher {
namespace {

using StatusJson = nlohmann::ordered_json;
using std::chrono::milliseconds;

StatusJson in_seconds(milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

milliseconds time_of(const StatusJson& seconds) {
  constexpr double kMostSeconds = 1e12;
  const auto value = seconds.get<double>();
  return value >= 0 && value < kMostSeconds
             ? milliseconds(static_cast<int64_t>(value * 1000 + 0.5))
             : milliseconds(0);
}

StatusJson name_or_null(const std::string& text) {
  return text.empty() ? StatusJson() : StatusJson(text);
}

/// Converts a count to int. Throws for values outside int's range.
int count_of(const StatusJson& number) {
  const auto value = number.is_number_integer() ? number.get<int64_t>() : -1;
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    throw std::out_of_range("no count");
  }
  return static_cast<int>(value);
}

std::string name_of(const StatusJson& text) {
  return text.is_null() ? "" : text.get<std::string>();
}

StatusJson signal_json(int number) {
  return number == 0 ? StatusJson() : StatusJson(signal_name(number));
}

/// Returns the number of a signal; searches by signal_name(), because signals
/// without a name are called "signal 40".
int signal_of(const StatusJson& json) {
  for (int number = 1; number <= SIGRTMAX; ++number) {
    if (json == signal_name(number)) {
      return number;
    }
  }
  return 0;
}

StatusJson progress_json(const WorkerState::Progress& progress) {
  return {{"text",
           progress.has_reported ? StatusJson(progress.last) : StatusJson()},
          {"seconds_ago", in_seconds(progress.quiet)}};
}

StatusJson rank_json(const WorkerState& worker) {
  const bool is_killed = worker.end && worker.end->signal != 0;
  return {
      {"rank", worker.rank},
      {"local_rank", worker.local_rank},
      {"pid", worker.pid},
      {"state", state_name(worker)},
      {"exit_code",
       worker.end && !is_killed ? StatusJson(worker.end->code) : StatusJson()},
      {"signal", signal_json(is_killed ? worker.end->signal : 0)},
      {"asked_by", signal_json(worker.asked_by)},
      {"progress",
       worker.progress ? progress_json(*worker.progress) : StatusJson()}};
}

WorkerState worker_of(const StatusJson& json) {
  WorkerState worker;
  worker.rank = count_of(json.at("rank"));
  worker.local_rank = count_of(json.at("local_rank"));
  worker.pid = count_of(json.at("pid"));
  const std::string state = json.at("state");
  worker.is_stopped = state == "stopped";
  if (!json.at("exit_code").is_null()) {
    worker.end = ExitStatus{.code = count_of(json.at("exit_code"))};
  } else if (!json.at("signal").is_null()) {
    worker.end = ExitStatus{.signal = signal_of(json.at("signal"))};
  }
  worker.asked_by = signal_of(json.at("asked_by"));
  const StatusJson& progress = json.at("progress");
  if (!progress.is_null()) {
    worker.progress = {.has_reported = !progress.at("text").is_null(),
                       .last = name_of(progress.at("text")),
                       .quiet = time_of(progress.at("seconds_ago"))};
  }
  return worker;
}

JobStatus status_of(const StatusJson& json) {
  JobStatus status;
  status.job = json.at("job");
  status.host = json.at("host");
  status.program = json.at("program");
  status.pid = count_of(json.at("pid"));
  status.supervisor = count_of(json.at("supervisor_pid"));
  status.phase = json.at("phase");
  status.uptime = time_of(json.at("uptime_seconds"));
  status.attempts = count_of(json.at("attempts"));
  status.generation = count_of(json.at("generation"));
  status.restarts = count_of(json.at("restarts"));
  status.max_restarts = count_of(json.at("max_restarts"));
  status.host_rank = count_of(json.at("host_rank"));
  status.host_count = count_of(json.at("host_count"));
  status.first_rank = count_of(json.at("first_rank"));
  status.world_size = count_of(json.at("world_size"));
  status.store = name_of(json.at("store"));
  status.logs = name_of(json.at("logs"));
  status.worker_count = count_of(json.at("worker_count"));
  for (const StatusJson& worker : json.at("ranks")) {
    status.workers.push_back(worker_of(worker));
  }
  return status;
}

}  // namespace

std::string status_json(const JobStatus& status) {
  StatusJson ranks = StatusJson::array();
  for (const WorkerState& worker : status.workers) {
    ranks.push_back(rank_json(worker));
  }
  const StatusJson json{{"job", status.job},
                        {"host", status.host},
                        {"program", status.program},
                        {"pid", status.pid},
                        {"supervisor_pid", status.supervisor},
                        {"phase", status.phase},
                        {"uptime_seconds", in_seconds(status.uptime)},
                        {"attempts", status.attempts},
                        {"generation", status.generation},
                        {"restarts", status.restarts},
                        {"max_restarts", status.max_restarts},
                        {"host_rank", status.host_rank},
                        {"host_count", status.host_count},
                        {"first_rank", status.first_rank},
                        {"world_size", status.world_size},
                        {"store", name_or_null(status.store)},
                        {"logs", name_or_null(status.logs)},
                        {"worker_count", status.worker_count},
                        {"ranks", std::move(ranks)}};
  // Paths may contain invalid UTF-8.
  return json.dump(-1, ' ', false, StatusJson::error_handler_t::replace) + "\n";
}

std::optional<JobStatus> parse_status(std::string_view text) {
  try {
    return status_of(StatusJson::parse(text));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace launcher
