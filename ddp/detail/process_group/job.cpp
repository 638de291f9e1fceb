#include "ddp/detail/process_group/job.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/detail/job_files/error_text.h"
#include "ddp/detail/process_group/backends.h"
#include "ddp/detail/process_group/farewell.h"
#include "ddp/detail/process_group/job_reach.h"
#include "ddp/detail/process_group/last_words.h"
#include "ddp/detail/process_group/meeting.h"

namespace ddp::detail {
namespace {

/// Another thread's: a client waits with a lock held.
c10::intrusive_ptr<c10d::Store> own_client(
    const c10::intrusive_ptr<c10d::Store>& store) {
  try {
    return store->clone();
  } catch (const c10::Error&) {
    return store;  // a user's, of a kind that cannot be cloned
  }
}

/// Who waits for the others need not when they are gone, one without coming.
bool is_the_last(const Job& job) {
  const auto departures = job.record->all_departures();
  return static_cast<int>(departures.size()) == job.env.world_size - 1 &&
         std::any_of(departures.begin(), departures.end(), [](const auto& one) {
           return one.how != Departure::How::destroyed;
         });
}

/// On the thread of the lines.
bool look(Job& job, c10d::Store& store) {
  try {
    if (is_the_last(job) && !has_lost_store(job)) {
      end_farewell(store);
    }
  } catch (const std::exception&) {
    // The store is gone: nobody waits.
  }
  return job.watch.look(store);
}

}  // namespace

bool has_lost_store(const Job& job) {
  const auto host = job.record->departure_of(0);
  return host && (host->how == Departure::How::vanished || host->has_closed);
}

std::string reach_of(const WorkerEnv& env) {
  return env.host_count > 1 ? env.master_addr : "";
}

c10::intrusive_ptr<c10d::Store> keys_of_job(
    c10::intrusive_ptr<c10d::Store> store,
    const WorkerEnv& env,
    const std::string& run_id) {
  auto attempt = c10::make_intrusive<c10d::PrefixStore>(key_prefix(env, run_id),
                                                        std::move(store));
  // Each rank comes once to each job, so its number is the same on all.
  const int64_t number = attempt->add("jobs/" + std::to_string(env.rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>("job_" + std::to_string(number),
                                                std::move(attempt));
}

void listen_for_departures(Job& job) {
  if (job.env.world_size == 1) {
    return;
  }
  job.lines = std::make_unique<Lines>(
      *job.store,
      Lines::Place{job.env.rank, job.env.world_size, reach_of(job.env)},
      job.record,
      [&job, store = own_client(job.store)] { return look(job, *store); });
}

c10::intrusive_ptr<JobBackend> make_group(Job& job,
                                          const GroupMembers& members) {
  const auto& ranks = members.ranks;
  const auto place = std::find(ranks.begin(), ranks.end(), job.env.rank);
  BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::PrefixStore>(members.name, job.store);
  spec.rank = static_cast<int>(place - ranks.begin());
  spec.size = static_cast<int>(ranks.size());
  spec.device = job.device;
  spec.timeout = job.timeout;
  spec.connect_timeout = job.connect_timeout;
  spec.reach = reach_of(job.env);
  spec.name = members.name;
  spec.ranks = ranks;
  spec.in_vain = [&] {
    const auto departure = job.record->first_departure(ranks);
    return departure ? describe(*departure, job.record->passes()) : "";
  };
  try {
    auto group = c10::make_intrusive<JobBackend>(job.backend_name == "nccl"
                                                     ? make_nccl_backend(spec)
                                                     : make_gloo_backend(spec),
                                                 members,
                                                 job.timeout,
                                                 job.record,
                                                 job.connect_timeout);
    if (group->getBackendName() == "nccl") {
      group->setBoundDeviceId(job.device);
    }
    job.watch.add(group);
    return group;
  } catch (...) {
    say_last_words(job, text_of(std::current_exception()));
    throw;
  }
}

Departure departure_by(const Job& job, Departure::How how) {
  Departure departure;
  departure.rank = job.env.rank;
  departure.how = how;
  departure.passes = job.record->passes();
  departure.started = job.watch.started();
  return departure;
}

void say_last_words(const Job& job, const std::string& text) noexcept {
  if (!job.lines) {
    return;
  }
  try {
    auto departure = departure_by(job, Departure::How::threw);
    departure.text = text;
    job.lines->say(departure);
  } catch (...) {
    // No memory: the process ends without a word.
  }
}

}  // namespace ddp::detail
