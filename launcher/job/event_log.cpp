#include "launcher/job/event_log.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "launcher/job/report/hang_text.h"

namespace launcher {
namespace {

using Json = nlohmann::ordered_json;

/// Fields that differ between events.
struct EventRecord {
  const char* state;
  const char* source;
  Json rank = nullptr;       // of a worker
  Json worker_id = nullptr;  // its process id, as text
  Json raw_error = nullptr;
  Json details = Json::object();  // added to the common fields
  std::chrono::seconds run_time{0};
};

// Escapes non-ASCII characters, like Python's json.dumps.
std::string json_text(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string line_of(const Job& job,
                    const World& world,
                    const EventRecord& event) {
  Json details{{"group_world_size", world.host_count},
               {"entry_point", job.program.path}};
  details.update(event.details);
  const Json metadata{{"run_id", job.run_id},
                      {"global_rank", event.rank},
                      {"group_rank", world.host_rank},
                      {"worker_id", event.worker_id},
                      {"role", job.options.role},
                      {"hostname", job.host_name},
                      {"state", event.state},
                      {"total_run_time", event.run_time.count()},
                      {"rdzv_backend", nullptr},
                      {"raw_error", event.raw_error},
                      {"metadata", json_text(details)},
                      {"agent_restarts", world.restarts},
                      {"duration_ms", nullptr}};
  return json_text({{"name",
                     std::string("torchelastic.worker.status.") + event.state},
                    {"source", event.source},
                    {"timestamp", 0},
                    {"metadata", metadata}}) +
         "\n";
}

/// Returns one worker's details. torchrun writes each field as a list.
Json details_of(const World& world, int local_rank, Json exit_code, Json pid) {
  const RoleRanks role =
      world.role.value_or(RoleRanks{world.first_rank, world.world_size});
  return {{"local_rank", Json::array({local_rank})},
          {"role_rank", Json::array({role.first_rank + local_rank})},
          {"role_world_size", Json::array({role.size})},
          {"exit_code", Json::array({std::move(exit_code)})},
          {"worker_pid", Json::array({std::move(pid)})}};
}

EventRecord event_of(const World& world,
                     const WorkerExit& exit,
                     const Cause& cause) {
  const bool hangs = is_hung(cause, exit.local_rank);
  EventRecord event{.state = hangs                      ? "FAILED"
                             : exit.asked_by != 0       ? "TERMINATED"
                             : exit.status.is_success() ? "SUCCEEDED"
                                                        : "FAILED",
                    .source = "WORKER"};
  event.rank = exit.rank;
  event.worker_id = std::to_string(exit.pid);
  if (!exit.error.empty()) {
    event.raw_error = exit.error;
  } else if (hangs) {
    event.raw_error = "ddprun: " + headline(std::get<WorkersHang>(cause).hang);
  }
  const int code =
      exit.status.signal != 0 ? -exit.status.signal : exit.status.code;
  event.details = details_of(world, exit.local_rank, code, exit.pid);
  return event;
}

EventRecord event_of(const World& world, const Survivor& survivor) {
  EventRecord event{.state = "TERMINATED", .source = "WORKER"};
  event.rank = survivor.rank;
  event.worker_id = std::to_string(survivor.pid);
  event.details = details_of(
      world, survivor.rank - world.first_rank, nullptr, survivor.pid);
  return event;
}

}  // namespace

std::string events_of_start(const Job& job, const World& world) {
  std::string lines;
  for (int local_rank = 0; local_rank < job.worker_count; ++local_rank) {
    EventRecord event{.state = "START", .source = "WORKER"};
    event.rank = world.first_rank + local_rank;
    event.details = details_of(world, local_rank, nullptr, nullptr);
    lines += line_of(job, world, event);
  }
  return lines;
}

std::string events_of_end(const Job& job,
                          const World& world,
                          const AttemptResult& result,
                          const Report& report,
                          std::chrono::milliseconds run_time) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(run_time);
  std::string lines;
  const auto add = [&](EventRecord event) {
    event.run_time = seconds;
    lines += line_of(job, world, event);
  };
  for (const WorkerExit& exit : result.workers.exits) {
    add(event_of(world, exit, result.cause));
  }
  for (const Survivor& survivor : result.workers.survivors) {
    add(event_of(world, survivor));
  }
  const bool success = report.text.empty();
  EventRecord end{.state = success ? "SUCCEEDED" : "FAILED", .source = "AGENT"};
  if (!success) {
    end.raw_error = report.text;
  }
  add(end);
  return lines;
}

}  // namespace launcher
