#include <algorithm>
#include <exception>

#include "ddp/base/text/rank_text.h"
#include "ddp/job/detail/job.h"
#include "ddp/job/error_text.h"
#include "ddp/job/leave_barrier.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;

/// Returns true if this rank leaves because of an exception.
bool is_failing() {
  return std::current_exception() || std::uncaught_exceptions() > 0;
}

Departure departure_now(const Job& job) {
  auto departure = departure_by(
      job, is_failing() ? Departure::How::threw : Departure::How::destroyed);
  if (const auto error = std::current_exception()) {
    departure.text = text_of(error);
  }
  return departure;
}

/// Reports the departure and waits at the leave barrier. Returns true if all
/// ranks arrived.
bool enter_leave_barrier(const Job& job) {
  job.peer_monitor->report(departure_now(job));
  if (has_lost_store(job)) {
    return false;
  }
  try {
    note_departure(*job.store, job.env.rank, job.env.world_size);
  } catch (const std::exception&) {
    // The store is gone, and rank 0 with it. The news of that may come later.
    job.record->wait_for_departure({0}, kNewsPatience);
    return false;
  }
  const auto missing =
      wait_for_departures(*job.store, job.env.world_size, kLeaveTimeout);
  if (job.env.rank == 0 && missing && !missing->empty()) {
    TORCH_WARN(
        "Expected all ranks to come to ddp::destroy_process_group() "
        "within ",
        kLeaveTimeout.count() / 1000,
        " s of each other, but ",
        missing->size(),
        " did not: ",
        rank_list(*missing));
  }
  if (job.backend_name == "nccl") {
    job.record->wait_for_departures(job.env.world_size - 1, kNewsPatience);
  }
  return missing && missing->empty();
}

/// Gloo's collectives throw on their own if a peer's process has ended.
bool is_reported_by_gloo(const MonitoredBackend& group,
                         const Departure& departure) {
  return departure.how == Departure::How::vanished &&
         group.getBackendName() == "gloo";
}

/// Returns an error for collectives that miss a rank, unless the program has
/// had one.
std::string vain_problem(const Job& job) {
  std::string problem;
  for (const auto& group : job.stuck_groups.groups()) {
    const auto departure = group->departed_member();
    if (departure && !is_reported_by_gloo(*group, *departure)) {
      problem = group->error_of("a collective", *departure);
    } else if (!departure && group->has_failed()) {
      problem = group->failure("a collective");
    }
  }
  return problem;
}

/// Returns true if all collectives that this rank has started can complete.
bool can_finish(const MonitoredBackend& group) {
  return !group.departed_member() && !group.behind() &&
         !group.has_failed_member() && !group.has_failed();
}

/// Closes the groups in the reverse order of their creation.
void close_groups(const Job& job, bool all_have_come) {
  const auto groups = job.stuck_groups.groups();
  for (auto it = groups.rbegin(); it != groups.rend(); ++it) {
    auto& group = **it;
    group.close(all_have_come && can_finish(group)
                    ? MonitoredBackend::End::finish
                    : MonitoredBackend::End::abort);
  }
}

std::string early_problem(const Job& job) {
  for (const auto& group : job.stuck_groups.groups()) {
    if (const auto other = group->behind()) {
      return "rank " + std::to_string(job.env.rank) +
             " has left while another rank went on: " +
             describe(*other, job.record->passes());
    }
  }
  return "";
}

/// As above, but waits up to `patience`: Gloo peers blocked on this rank throw,
/// and report it, once this rank has closed its groups.
std::string early_problem(const Job& job, milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (int heard = 0; heard < job.env.world_size - 1;) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left <= milliseconds(0)) {
      break;
    }
    job.record->wait_for_departures(heard + 1, left);
    heard = job.record->departures();
    if (auto problem = early_problem(job); !problem.empty()) {
      return problem;
    }
  }
  return early_problem(job);
}

/// Runs the checks. They may wait without limit if all queued work can
/// complete, else for kNewsPatience.
std::string run_checks(const Job& job, bool all_have_come) {
  const auto groups = job.stuck_groups.groups();
  const bool ends =
      all_have_come &&
      std::all_of(groups.begin(), groups.end(), [](const auto& group) {
        return can_finish(*group);
      });
  std::string problem;
  for (const auto& answer :
       job.record->run_checks(ends ? milliseconds::max() : kNewsPatience)) {
    problem += (problem.empty() ? "" : "; ") + answer;
  }
  return problem;
}

/// Waits for queued work that can complete. If a rank dies meanwhile, the peer
/// monitor's thread aborts the group.
void finish_groups(const Job& job, bool all_have_come) {
  for (const auto& group : job.stuck_groups.groups()) {
    if (all_have_come && can_finish(*group)) {
      group->wait_until_idle();
    }
  }
}

/// Returns the error that the program has not seen yet, or "".
std::string problem_of(const Job& job, bool all_have_come) {
  auto problem = vain_problem(job);
  if (problem.empty()) {
    problem = early_problem(job);
  }
  return problem.empty() ? run_checks(job, all_have_come) : problem;
}

}  // namespace

void end_threads(const Job& job) noexcept {
  if (job.process != ::getpid()) {
    return;
  }
  if (job.peer_monitor) {
    job.peer_monitor->stop();
  }
  if (job.backend_name == "nccl") {
    close_groups(job, /*all_have_come=*/false);
  }
}

std::string leave(std::unique_ptr<Job> job) noexcept {
  try {
    const bool all_have_come = !job->peer_monitor || enter_leave_barrier(*job);
    finish_groups(*job, all_have_come);
    const bool knows = job->record->is_told() || is_failing();
    std::string problem = knows ? "" : problem_of(*job, all_have_come);
    close_groups(*job, all_have_come);
    if (problem.empty() && !knows && !all_have_come) {
      problem = early_problem(*job, kNewsPatience);
    }
    job->world.reset();
    job->store.reset();
    if (job->peer_monitor && all_have_come) {
      // Rank 0 has closed its store then, so the next job cannot connect to it.
      job->peer_monitor->wait_for_rank_0(kLeaveTimeout);
    }
    return problem;
  } catch (...) {
    return text_of(std::current_exception());
  }
}

}  // namespace ddp::detail
