#pragma once

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "ddp/base/cluster/worker_env.h"
#include "ddp/job/detail/control_channel.h"
#include "ddp/job/detail/open_groups.h"
#include "ddp/job/monitored_backend.h"

namespace ddp::detail {

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
  bool guest = false;
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<PeerState> record = std::make_shared<PeerState>();
  OpenGroups groups;
  c10::intrusive_ptr<MonitoredBackend> world;
  int group_count = 0;
  /// Null in a world of one. The last member, so that its thread ends before
  /// the members that it uses are destroyed.
  std::unique_ptr<ControlChannel> channel;
};

/// Connects the control channel. Does nothing in a world of one. Collective.
void open_channel(Job& job);

/// Creates a group, which is closed when the job is left. Collective over the
/// members of the group.
/// @param backend  "nccl" or "gloo".
c10::intrusive_ptr<MonitoredBackend> make_group(Job& job,
                                                const GroupMembers& members,
                                                const std::string& backend);

/// Waits for the other ranks, lets queued GPU work complete if it can, and
/// closes everything. A rank that leaves because of an exception, or after an
/// exception has left its backward pass, announces the exception instead of
/// waiting. Returns an error of one line that the program has not seen yet, or
/// ""; the exception of the program itself comes first.
std::string leave(Job& job) noexcept;

/// Stops the threads that use LibTorch (the channel's and NCCL's), because
/// exit() destroys LibTorch's static objects next. Does nothing in a forked
/// child.
void end_threads(const Job& job) noexcept;

}  // namespace ddp::detail
