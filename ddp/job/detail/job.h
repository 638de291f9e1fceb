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

/// How long a rank that leaves waits for the others.
constexpr std::chrono::milliseconds kLeaveTimeout{10'000};

/// What lies between `ddp::init_process_group` and
/// `ddp::destroy_process_group`.
struct Job {
  pid_t process = ::getpid();
  WorkerEnv env;
  std::string backend_name;
  c10::Device device = c10::Device(c10::kCPU);
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds connect_timeout{0};
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<PeerState> record = std::make_shared<PeerState>();
  /// While the ranks join: why it is in vain to wait for them; null from then
  /// on, when all hear of departures.
  VainCheck joins_in_vain;
  StuckGroupAborter watch;
  c10::intrusive_ptr<MonitoredBackend> world;
  int group_count = 0;
  std::unique_ptr<PeerMonitor> lines;  // with one rank null; last: its thread
                                       // goes before what it uses
};

/// Gives this job keys of its own in a store that may have seen others.
/// @throws c10::Error when the store is gone.
c10::intrusive_ptr<c10d::Store> keys_of_job(
    c10::intrusive_ptr<c10d::Store> store,
    const WorkerEnv& env,
    const std::string& run_id);

/// Why it is in vain to wait for the ranks of this job to join: the launcher
/// says that one has ended, or a rank does that has heard it. Asks the store of
/// the job where there is one already.
/// @param ends_file  see detail/job_files/worker_ends.h; "" for none.
VainCheck join_vain_check(const Job& job, const std::string& ends_file);

/// Why it is in vain to wait for one of these ranks: one has left. Of all ranks
/// of a job only those that have left otherwise than by
/// ddp::destroy_process_group().
VainCheck vain_check(std::shared_ptr<PeerState> record, std::vector<int> ranks);
VainCheck vain_check(std::shared_ptr<PeerState> record);

/// From now on the ranks hear of each other's departures, also of an exception
/// that nobody catches. Collective.
void listen_for_departures(Job& job);

/// Makes a group that is closed when the job is left. Collective over its
/// members.
c10::intrusive_ptr<MonitoredBackend> make_group(Job& job,
                                                const GroupMembers& members);

/// How this rank leaves, if it does so now.
Departure departure_by(const Job& job, Departure::How how);

/// Whether rank 0 has ended, or closed the store: nobody waits there then, and
/// LibTorch would log pages.
bool has_lost_store(const Job& job);

/// Says goodbye, waits for the others, lets what is queued on the GPU end where
/// it can, and closes everything. Returns what has gone wrong that the program
/// has not been told yet, one line, or "".
std::string leave(std::unique_ptr<Job> job) noexcept;

/// Ends the threads that use LibTorch, whose statics exit() destroys next: that
/// of the lines, and NCCL's. Does nothing in a fork of the process.
void end_threads(const Job& job) noexcept;

/// Tells the others why this process ends.
void announce_fatal_error(const Job& job, const std::string& text) noexcept;

}  // namespace ddp::detail
