#pragma once

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "ddp/base/cluster/worker_env.h"
#include "ddp/job/detail/peer_monitor.h"
#include "ddp/job/detail/stuck_group_aborter.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/monitored_store.h"

namespace ddp::detail {

/// Time limit of the leave barrier.
constexpr std::chrono::milliseconds kLeaveTimeout{10'000};

/// State of a job, from `ddp::init_process_group` to
/// `ddp::destroy_process_group`.
struct Job {
  pid_t process = ::getpid();
  WorkerEnv env;
  std::string backend_name;
  c10::Device device = c10::Device(c10::kCPU);
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds connect_timeout{0};
  bool shares_memory = true;
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<PeerState> record = std::make_shared<PeerState>();
  /// Returns why waiting for the ranks is in vain while they join. Null
  /// afterwards, when the peer monitor reports departures.
  VainCheck joins_in_vain;
  StuckGroupAborter stuck_groups;
  c10::intrusive_ptr<MonitoredBackend> world;
  int group_count = 0;
  /// Null in a world of one. The last member, so that its thread ends before
  /// the members that it uses are destroyed.
  std::unique_ptr<PeerMonitor> peer_monitor;
};

/// Returns a view of the store with keys of this job only; the store may have
/// served earlier jobs.
/// @throws c10::Error if the store is gone.
c10::intrusive_ptr<c10d::Store> keys_of_job(
    c10::intrusive_ptr<c10d::Store> store,
    const WorkerEnv& env,
    const std::string& run_id);

/// Returns a check that gives the reason why waiting for the ranks of this job
/// to join is in vain: the launcher reports that a rank's process has ended, or
/// another rank has published such an end in the store. Reads the store if the
/// job has one already.
/// @param ends_file  see base/job_files/worker_ends.h; "" for none.
VainCheck join_vain_check(const Job& job, const std::string& ends_file);

/// Returns a check that gives the reason why waiting for one of these ranks is
/// in vain: a rank has left. The overload for all ranks of a job ignores
/// departures by ddp::destroy_process_group().
VainCheck vain_check(std::shared_ptr<PeerState> record, std::vector<int> ranks);
VainCheck vain_check(std::shared_ptr<PeerState> record);

/// Starts the peer monitor: from now on the ranks see each other's departures,
/// including uncaught exceptions. Does nothing in a world of one. Collective.
void start_peer_monitor(Job& job);

/// Creates a group, which is closed when the job is left. Collective over the
/// members of the group.
c10::intrusive_ptr<MonitoredBackend> make_group(Job& job,
                                                const GroupMembers& members);

/// The departure of this rank if it left now.
Departure departure_by(const Job& job, Departure::How how);

/// Returns true if rank 0 has ended or has closed the store. Waiting at the
/// store is pointless then, and LibTorch would log many lines.
bool has_lost_store(const Job& job);

/// Reports the departure, waits for the other ranks, lets queued GPU work
/// complete if it can, and closes everything. Returns an error of one line that
/// the program has not seen yet, or "".
std::string leave(std::unique_ptr<Job> job) noexcept;

/// Stops the threads that use LibTorch (the peer monitor's and NCCL's), because
/// exit() destroys LibTorch's static objects next. Does nothing in a forked
/// child.
void end_threads(const Job& job) noexcept;

/// Reports to the other ranks why this process ends.
void announce_fatal_error(const Job& job, const std::string& text) noexcept;

}  // namespace ddp::detail
