#include "ddp/job/detail/job.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/base/job_files/worker_ends.h"
#include "ddp/job/backends.h"
#include "ddp/job/detail/fatal_error.h"
#include "ddp/job/error_text.h"
#include "ddp/job/interface_hint.h"
#include "ddp/job/leave_barrier.h"
#include "ddp/job/meeting.h"

namespace ddp::detail {
namespace {

constexpr const char* kWorkerEnd = "worker_end";

std::string describe_end(const WorkerEnd& end) {
  return "the process of rank " + std::to_string(end.rank) + " has ended (" +
         end.how + ") while others waited for it; its own output says why";
}

/// Returns a store client for another thread: a client holds a lock while it
/// waits.
c10::intrusive_ptr<c10d::Store> own_client(
    const c10::intrusive_ptr<c10d::Store>& store) {
  try {
    return store->clone();
  } catch (const c10::Error&) {
    return store;  // a user's store that cannot be cloned
  }
}

/// Returns true if all other ranks have left, and at least one of them without
/// the leave barrier: the barrier cannot complete then.
bool is_the_last(const Job& job) {
  const auto departures = job.record->all_departures();
  return static_cast<int>(departures.size()) == job.env.world_size - 1 &&
         std::any_of(departures.begin(), departures.end(), [](const auto& one) {
           return one.how != Departure::How::destroyed;
         });
}

/// Callback of the peer monitor, called on its thread.
bool look(Job& job, c10d::Store& store) {
  const bool is_any_open = job.stuck_groups.abort_stuck_groups(store);
  try {
    // A rank that has left may still send what this rank waits for.
    if (is_the_last(job) && !job.stuck_groups.may_be_working() &&
        !has_lost_store(job)) {
      end_leave_barrier(store);
    }
  } catch (const std::exception&) {
    // The store is gone, so no rank waits in it.
  }
  return is_any_open;
}

}  // namespace

bool has_lost_store(const Job& job) {
  const auto host = job.record->departure_of(0);
  return host && (host->how == Departure::How::vanished || host->has_closed);
}

std::string interface_hint_of(const WorkerEnv& env) {
  return env.host_count > 1 ? env.master_addr : "";
}

c10::intrusive_ptr<c10d::Store> keys_of_job(
    c10::intrusive_ptr<c10d::Store> store,
    const WorkerEnv& env,
    const std::string& run_id) {
  auto attempt = c10::make_intrusive<c10d::PrefixStore>(key_prefix(env, run_id),
                                                        std::move(store));
  // Each rank joins each job once, so the number is the same on all ranks.
  const int64_t number = attempt->add("jobs/" + std::to_string(env.rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>("job_" + std::to_string(number),
                                                std::move(attempt));
}

VainCheck join_vain_check(const Job& job, const std::string& ends_file) {
  return [rank = job.env.rank,
          size = job.env.world_size,
          store = job.store,
          others = vain_check(job.record),
          ends_file]() -> std::string {
    const auto end =
        ends_file.empty() ? std::nullopt : first_worker_end(ends_file);
    std::string text;
    try {
      if (end && end->rank != rank && end->rank < size) {
        text = describe_end(*end);
        if (store) {
          store->set(kWorkerEnd, text);  // for ranks on other hosts
        }
      }
      if (text.empty()) {
        text = others();
      }
      if (text.empty() && store && store->check({kWorkerEnd})) {
        text = store->get_to_str(kWorkerEnd);
      }
    } catch (const c10::Error&) {
      // The store is gone.
    }
    return text;
  };
}

VainCheck vain_check(std::shared_ptr<PeerState> record,
                     std::vector<int> ranks) {
  return [record = std::move(record), ranks = std::move(ranks)] {
    const auto departure = record->first_departure(ranks);
    return departure ? describe(*departure, record->passes()) : "";
  };
}

VainCheck vain_check(std::shared_ptr<PeerState> record) {
  return [record = std::move(record)]() -> std::string {
    const auto failure = record->wait_for_failure(std::chrono::milliseconds(0));
    if (!failure) {
      return "";
    }
    record->mark_told();
    return describe(*failure, record->passes());
  };
}

void start_peer_monitor(Job& job) {
  if (job.env.world_size == 1) {
    return;
  }
  MonitoredStore meeting("lines", job.store, job.joins_in_vain);
  job.peer_monitor = std::make_unique<PeerMonitor>(
      meeting,
      PeerMonitor::Place{
          job.env.rank, job.env.world_size, interface_hint_of(job.env)},
      job.record,
      [&job, store = own_client(job.store)] { return look(job, *store); });
}

c10::intrusive_ptr<MonitoredBackend> make_group(Job& job,
                                                const GroupMembers& members) {
  const auto& ranks = members.ranks;
  const auto place = std::find(ranks.begin(), ranks.end(), job.env.rank);
  BackendSpec spec;
  const VainCheck in_vain = [members_left = vain_check(job.record, ranks),
                             joins_in_vain = job.joins_in_vain] {
    const std::string reason = joins_in_vain ? joins_in_vain() : "";
    return reason.empty() ? members_left() : reason;
  };
  spec.store =
      c10::make_intrusive<MonitoredStore>(members.name, job.store, in_vain);
  spec.rank = static_cast<int>(place - ranks.begin());
  spec.size = static_cast<int>(ranks.size());
  spec.device = job.device;
  spec.timeout = job.timeout;
  spec.connect_timeout = job.connect_timeout;
  spec.reach = interface_hint_of(job.env);
  spec.name = members.name;
  spec.ranks = ranks;
  if (spec.size > 1) {  // a single rank has no peers to wait for
    spec.in_vain = in_vain;
  }
  try {
    auto group = c10::make_intrusive<MonitoredBackend>(
        job.backend_name == "nccl" ? make_nccl_backend(spec)
                                   : make_gloo_backend(spec),
        members,
        job.timeout,
        job.record,
        job.connect_timeout);
    if (group->getBackendName() == "nccl") {
      group->setBoundDeviceId(job.device);
    }
    job.stuck_groups.add(group);
    return group;
  } catch (...) {
    announce_fatal_error(job, text_of(std::current_exception()));
    throw;
  }
}

Departure departure_by(const Job& job, Departure::How how) {
  Departure departure;
  departure.rank = job.env.rank;
  departure.how = how;
  departure.passes = job.record->passes();
  departure.started = job.stuck_groups.started();
  return departure;
}

void announce_fatal_error(const Job& job, const std::string& text) noexcept {
  if (!job.peer_monitor) {
    return;
  }
  try {
    auto departure = departure_by(job, Departure::How::threw);
    departure.text = text;
    job.peer_monitor->report(departure);
  } catch (...) {
    // Out of memory: the process ends without a report.
  }
}

}  // namespace ddp::detail
