#include "ddp/job/detail/job.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <c10/util/hash.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/base/text/rank_text.h"
#include "ddp/job/backends.h"
#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;

/// Time limit of ddp::destroy_process_group for the other ranks.
constexpr milliseconds kLeaveTimeout{10'000};

/// For messages that this rank has sent, before its connections are closed.
constexpr milliseconds kSendPatience{500};

/// Returns true if this rank leaves because of an exception.
bool is_failing() {
  return std::current_exception() || std::uncaught_exceptions() > 0;
}

std::string text_of_left_pass(const Job& job) {
  return !job.record->is_reported() && job.groups.has_open_pass()
             ? "backward() was left by an exception on rank " +
                   std::to_string(job.env.rank)
             : "";
}

void warn_of_missing(const std::vector<int>& missing) {
  TORCH_WARN(
      "Expected all ranks to come to ddp::destroy_process_group() within ",
      kLeaveTimeout.count() / 1000,
      " s of each other, but ",
      missing.size(),
      " did not: ",
      rank_list(missing));
}

/// Returns true if the collectives that this rank has started can complete.
bool can_finish(const MonitoredBackend& group) {
  return group.is_open() && !group.departed_member() && !group.has_failed();
}

/// Closes the groups in the reverse order of their creation.
void close_groups(const Job& job, bool finishes) {
  const auto groups = job.groups.all();
  for (auto it = groups.rbegin(); it != groups.rend(); ++it) {
    auto& group = **it;
    group.close(finishes && can_finish(group) ? MonitoredBackend::End::finish
                                              : MonitoredBackend::End::abort);
  }
}

/// Waits for queued work that can complete. If a rank dies meanwhile, the
/// channel's thread aborts the group.
void finish_groups(const Job& job) {
  for (const auto& group : job.groups.all()) {
    if (can_finish(*group)) {
      group->wait_until_idle();
    }
  }
}

/// Returns the error of a group that was aborted, or has work that will never
/// complete; or "".
std::string problem_of_groups(const Job& job) {
  for (const auto& group : job.groups.all()) {
    const auto left = group->departed_member();
    if (!group->is_open() || group->has_failed()) {
      return group->failure("a collective");
    }
    if (left && group->may_be_working()) {
      return group->error_of("a collective", *left);
    }
  }
  return "";
}

/// Closes the groups of a rank that leaves because of `problem`.
void leave_with_error(const Job& job, const std::string& problem) {
  if (job.channel) {
    job.channel->report_failure(problem);
    // The other ranks complete the collectives that this rank has begun.
    std::this_thread::sleep_for(kSendPatience);
  }
  close_groups(job, /*finishes=*/false);
}

/// Waits for the other ranks, and returns the error for the program.
std::string leave_with_others(Job& job) {
  const auto end = job.channel ? job.channel->leave(kLeaveTimeout)
                               : ControlChannel::End::all_are_here;
  const bool all_are_here = end == ControlChannel::End::all_are_here;
  if (end == ControlChannel::End::too_late && job.env.rank == 0) {
    warn_of_missing(job.channel->missing_ranks());
  }
  if (all_are_here) {
    finish_groups(job);
  }
  std::string problem;
  if (end == ControlChannel::End::dead_wait) {
    problem = "rank " + std::to_string(job.env.rank) + ": " +
              job.channel->dead_wait_error();
    // Another rank may wait for work of a group that this rank aborts.
    leave_with_error(job, problem);
  } else {
    problem = job.record->is_reported() ? "" : problem_of_groups(job);
    close_groups(job, all_are_here);
  }
  job.world.reset();
  job.store.reset();
  if (job.channel && all_are_here) {
    // Rank 0 has closed its store then, so the next job cannot connect to it.
    job.channel->wait_for_rank_0(kLeaveTimeout);
  }
  return problem;
}

}  // namespace

void open_channel(Job& job) {
  if (job.env.world_size == 1) {
    return;
  }
  job.channel = std::make_unique<ControlChannel>(
      *job.store,
      ControlChannel::Place{
          job.env.rank, job.env.world_size, interface_hint_of(job.env)},
      job.record,
      ControlChannel::Callbacks{
          [&job] { return job.groups.report(); },
          [&job] { return job.groups.end_waits_for_departed(); },
          [&job](const auto& dead) {
            return job.groups.end_dead_waits(dead);
          }});
}

c10::intrusive_ptr<MonitoredBackend> make_group(Job& job,
                                                const GroupMembers& members,
                                                const std::string& backend) {
  const auto& ranks = members.ranks;
  const auto place = std::find(ranks.begin(), ranks.end(), job.env.rank);
  BackendSpec spec;
  // A group with the same name and other members does not connect to this
  // group.
  spec.store = c10::make_intrusive<c10d::PrefixStore>(
      members.name + "/" + c10::sha1(members.ranges).str(), job.store);
  spec.rank = static_cast<int>(place - ranks.begin());
  spec.size = static_cast<int>(ranks.size());
  spec.device = job.device;
  spec.timeout = job.timeout;
  spec.connect_timeout = job.connect_timeout;
  spec.interface_hint = interface_hint_of(job.env);
  spec.name = members.name;
  spec.guest = job.guest;
  spec.ranks = ranks;
  const OpenGroups::MakingScope making(job.groups, members);
  if (spec.size > 1) {  // a single rank has no peers to wait for
    spec.peer_failure = [&making, record = job.record, ranks]() {
      auto left = record->first_departure(ranks);
      if (!left) {
        left = record->departure_of(0);  // which hosts the store
      }
      return left ? describe(*left, record->passes()) : making.error();
    };
  }
  try {
    auto group = c10::make_intrusive<MonitoredBackend>(
        backend == "nccl" ? make_nccl_backend(spec) : make_gloo_backend(spec),
        members,
        job.timeout,
        job.record,
        job.connect_timeout);
    if (group->getBackendName() == "nccl") {
      group->setBoundDeviceId(job.device);
    }
    job.groups.add(group);
    return group;
  } catch (...) {
    if (job.channel) {
      job.channel->report_failure(text_of(std::current_exception()));
    }
    throw;
  }
}

std::string leave(Job& job) noexcept {
  const bool fails = is_failing();
  std::string problem;
  try {
    problem = text_of_left_pass(job);
    if (!fails && problem.empty()) {
      return leave_with_others(job);
    }
    const auto error = std::current_exception();
    leave_with_error(job, error ? text_of(error) : problem);
  } catch (...) {
    problem = text_of(std::current_exception());
    close_groups(job, /*finishes=*/false);
  }
  return fails ? "" : problem;
}

void end_threads(const Job& job) noexcept {
  if (job.process != ::getpid()) {
    return;
  }
  if (job.channel) {
    job.channel->stop();
  }
  if (job.backend_name == "nccl") {
    close_groups(job, /*finishes=*/false);
  }
}

}  // namespace ddp::detail
