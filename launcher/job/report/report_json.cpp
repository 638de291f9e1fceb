#include "launcher/job/report/report_json.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/base/exit_status.h"
#include "launcher/base/overloaded.h"
#include "launcher/job/report/failure_text.h"
#include "launcher/workers/error_file.h"

namespace launcher {
namespace {

using ReportJson = nlohmann::ordered_json;

/// Returns null for an empty text.
ReportJson text_or_null(const std::string& text) {
  return text.empty() ? ReportJson() : ReportJson(text);
}

ReportJson signal_or_null(int number) {
  return number == 0 ? ReportJson() : ReportJson(signal_name(number));
}

ReportJson seconds_json(std::chrono::duration<double> time) {
  return time.count();
}

ReportJson hang_json(const Hang& hang) {
  ReportJson hung = ReportJson::array();
  for (const HungWorker& worker : hang.workers) {
    hung.push_back(
        {{"rank", worker.rank},
         {"local_rank", worker.local_rank},
         {"pid", worker.pid},
         {"quiet_seconds", seconds_json(worker.quiet)},
         {"limit_seconds", seconds_json(worker.limit)},
         {"last_report",
          worker.has_reported ? ReportJson(worker.last_report) : ReportJson()},
         {"is_stopped", worker.is_stopped}});
  }
  ReportJson others = ReportJson::array();
  for (const RankReport& other : hang.others) {
    others.push_back(
        {{"rank", other.rank},
         {"last_report",
          other.has_reported ? ReportJson(other.last) : ReportJson()}});
  }
  return {{"kind", "hang"},
          {"rank", hang.workers.front().rank},
          {"timeout_seconds", seconds_json(hang.timeout)},
          {"hung", std::move(hung)},
          {"others", std::move(others)}};
}

ReportJson cause_json(const Cause& cause) {
  return std::visit(
      Overloaded{
          [](const std::monostate&) { return ReportJson(); },
          // The caller adds the rank of the worker.
          [](const WorkerExited&) {
            return ReportJson{{"kind", "worker_failed"}};
          },
          [](const StartFailed& start) {
            return ReportJson{{"kind", "start_failed"}, {"text", start.text}};
          },
          [](const SignalReceived& signal) {
            return ReportJson{{"kind", "signal"},
                              {"signal", signal_name(signal.number)}};
          },
          [](const WorldBroken& broken) {
            return ReportJson{{"kind", "host_" + text_of(broken.change)},
                              {"host", broken.host}};
          },
          [](const RendezvousLost& lost) {
            return ReportJson{{"kind", "rendezvous_lost"}, {"text", lost.text}};
          },
          [](const WorkersHang& hangs) { return hang_json(hangs.hang); },
          [](const JobClosed& closed) {
            return closed.exit_code == 0
                       ? ReportJson()
                       : ReportJson{{"kind", "other_host_failed"}};
          },
      },
      cause);
}

ReportJson first_json(const FirstFailure& first) {
  return {{"rank", first.rank}, {"host", first.host}};
}

std::string part_of(const WorkerExit& exit,
                    const WorkerExit* first,
                    const Cause& cause) {
  if (&exit == first) {
    return "first_failure";
  }
  if (is_hung(cause, exit.local_rank)) {
    return "hung";
  }
  if (exit.asked_by != 0) {
    return "stopped";
  }
  return exit.status.is_success() ? "succeeded" : "followed";
}

ReportJson worker_json(const WorkerExit& exit,
                       const WorkerExit* first,
                       const Cause& cause) {
  const bool was_killed = exit.status.signal != 0;
  ReportJson worker{
      {"rank", exit.rank},
      {"local_rank", exit.local_rank},
      {"pid", exit.pid},
      {"after_seconds", static_cast<double>(exit.after.count()) / 1000},
      {"exit_code", was_killed ? ReportJson() : ReportJson(exit.status.code)},
      {"signal", signal_or_null(exit.status.signal)},
      {"part", part_of(exit, first, cause)},
      {"stopped_by", signal_or_null(exit.asked_by)}};
  if (exit.asked_by == 0 && !exit.status.is_success()) {
    worker["stderr"] = exit.last_lines;
    worker["error"] = text_or_null(message_of_error_file(exit.error));
  }
  return worker;
}

ReportJson state_json(const WorkerState& worker) {
  const bool was_killed = worker.end && worker.end->signal != 0;
  return {
      {"rank", worker.rank},
      {"local_rank", worker.local_rank},
      {"pid", worker.pid},
      {"state",
       worker.end             ? "ended"
       : worker.asked_by != 0 ? "ending"
                              : "running"},
      {"exit_code",
       worker.end && !was_killed ? ReportJson(worker.end->code) : ReportJson()},
      {"signal", signal_or_null(was_killed ? worker.end->signal : 0)}};
}

ReportJson now_json(const JobState& state) {
  if (state.attempts == 0) {
    return {};
  }
  const World& world = state.world;
  ReportJson workers = ReportJson::array();
  for (const WorkerState& worker : state.workers) {
    workers.push_back(state_json(worker));
  }
  return {
      {"restarts", world.restarts},
      {"generation", world.generation},
      {"host_rank", world.host_rank},
      {"host_count", world.host_count},
      {"first_rank", world.first_rank},
      {"world_size", world.world_size},
      {"store", world.master.host + ":" + std::to_string(world.master.port)},
      {"logs", text_or_null(state.logs)},
      {"workers", std::move(workers)}};
}

/// Replaces invalid UTF-8: workers may write any bytes.
std::string dumped(const ReportJson& json, int indent) {
  return json.dump(indent, ' ', false, ReportJson::error_handler_t::replace);
}

}  // namespace

std::string attempt_json(const AttemptResult& result, int exit_code) {
  const WorkerExit* first = first_failure(result);
  ReportJson cause = cause_json(result.cause);
  if (first != nullptr) {
    cause["rank"] = first->rank;
    cause["is_final"] = result.is_final;
  }
  if (result.first && !cause.is_null()) {
    cause["first"] = first_json(*result.first);
  }
  ReportJson workers = ReportJson::array();
  for (const WorkerExit& exit : result.workers.exits) {
    workers.push_back(worker_json(exit, first, result.cause));
  }
  ReportJson survivors = ReportJson::array();
  for (const Survivor& survivor : result.workers.survivors) {
    survivors.push_back({{"rank", survivor.rank}, {"pid", survivor.pid}});
  }
  return dumped(
      {{"number", result.restarts + 1},
       {"logs", text_or_null(result.logs)},
       {"exit_code", exit_code},
       {"cause", std::move(cause)},
       {"out_of_memory_kills", result.workers.oom_kills},
       {"out_of_memory_cgroup", text_or_null(result.workers.oom_cgroup)},
       {"workers", std::move(workers)},
       {"survivors", std::move(survivors)}},
      -1);
}

std::string job_json(const JobFacts& facts,
                     const JobState& state,
                     const std::vector<std::string>& attempts,
                     std::optional<int> exit_code) {
  ReportJson list = ReportJson::array();
  for (const std::string& attempt : attempts) {
    list.push_back(ReportJson::parse(attempt));
  }
  return dumped(
             {{"version", 1},
              {"run_id", facts.run_id},
              {"host", facts.host},
              {"program", facts.program},
              {"max_restarts", facts.max_restarts},
              {"state", exit_code ? "ended" : "running"},
              {"exit_code", exit_code ? ReportJson(*exit_code) : ReportJson()},
              {"phase", text_of(state.phase)},
              {"now", now_json(state)},
              {"attempts", std::move(list)}},
             2) +
         "\n";
}

}  // namespace launcher
