#include "ddp/detail/process_group/job.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/detail/process_group/backends.h"
#include "ddp/detail/process_group/farewell.h"
#include "ddp/detail/process_group/job_reach.h"
#include "ddp/detail/process_group/last_words.h"
#include "ddp/detail/process_group/meeting.h"
#include "ddp/detail/rank_text.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;

/// How long what the others have started may take to be heard of, when they
/// have left already.
constexpr milliseconds kHearPatience{2'000};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    return caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::terminate_handler terminate_before = nullptr;

[[noreturn]] void say_and_terminate() {
  if (const auto error = std::current_exception()) {
    last_words(text_of(error));
  }
  terminate_before();
  std::abort();
}

void hear_uncaught_exceptions() {
  static const bool once = [] {
    terminate_before = std::set_terminate(say_and_terminate);
    return true;
  }();
  static_cast<void>(once);
}

/// Another thread's: a client waits with a lock held.
c10::intrusive_ptr<c10d::Store> own_client(
    const c10::intrusive_ptr<c10d::Store>& store) {
  try {
    return store->clone();
  } catch (const c10::Error&) {
    return store;  // a user's, of a kind that cannot be cloned
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

/// Whether an exception makes this rank leave.
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

/// Who waits for the others need not when they are gone, one without coming.
bool is_the_last(const Job& job) {
  const auto departures = job.record->all_departures();
  return static_cast<int>(departures.size()) == job.env.world_size - 1 &&
         std::any_of(departures.begin(), departures.end(), [](const auto& one) {
           return one.how != Departure::How::destroyed;
         });
}

/// Nobody waits at a store whose host has ended, and LibTorch logs pages there.
bool has_lost_store(const Job& job) {
  const auto host = job.record->departure_of(0);
  return host && host->how == Departure::How::vanished;
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

/// True when all have come.
bool say_goodbye(const Job& job) {
  job.lines->say(departure_now(job));
  if (has_lost_store(job)) {
    return false;
  }
  try {
    note_departure(*job.store, job.env.rank, job.env.world_size);
  } catch (const std::exception&) {
    return false;  // the store is gone, and rank 0 with it
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
    job.record->wait_for_departures(job.env.world_size - 1, kHearPatience);
  }
  return missing && missing->empty();
}

/// Gloo's collectives throw by themselves where a process has ended.
bool has_told(const JobBackend& group, const Departure& departure) {
  return departure.how == Departure::How::vanished &&
         group.getBackendName() == "gloo";
}

/// What the program has not been told of collectives that miss a rank.
std::string problem_of(const Job& job) {
  std::string problem;
  for (const auto& group : job.watch.groups()) {
    const auto departure = group->missed_by();
    if (departure && !has_told(*group, *departure)) {
      problem = group->error_of("a collective", *departure);
    }
  }
  return problem;
}

/// Whether what this rank has started ends by itself.
bool can_finish(const JobBackend& group) {
  return !group.missed_by() && !group.behind() && !group.has_lost_one();
}

/// The last group goes first.
void close_groups(const Job& job, bool all_have_come) {
  const auto groups = job.watch.groups();
  for (auto it = groups.rbegin(); it != groups.rend(); ++it) {
    auto& group = **it;
    group.close(all_have_come && can_finish(group) ? JobBackend::End::finish
                                                   : JobBackend::End::abort);
  }
}

std::string early_problem(const Job& job) {
  for (const auto& group : job.watch.groups()) {
    if (const auto other = group->behind()) {
      return "rank " + std::to_string(job.env.rank) +
             " has left while another rank went on: " +
             describe(*other, job.record->passes());
    }
  }
  return "";
}

/// Ranks that wait over Gloo throw, and say so, when this one has closed.
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

/// What is queued ends where all have come and miss nothing; else it may.
std::string ask_checks(const Job& job, bool all_have_come) {
  const auto groups = job.watch.groups();
  const bool ends =
      all_have_come &&
      std::all_of(groups.begin(), groups.end(), [](const auto& group) {
        return can_finish(*group);
      });
  std::string problem;
  for (const auto& answer :
       job.record->ask_checks(ends ? milliseconds::max() : kHearPatience)) {
    problem += (problem.empty() ? "" : "; ") + answer;
  }
  return problem;
}

}  // namespace

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
  hear_uncaught_exceptions();
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
                                                 job.record);
    job.watch.add(group);
    return group;
  } catch (...) {
    say_last_words(job, text_of(std::current_exception()));
    throw;
  }
}

std::string leave(std::unique_ptr<Job> job) noexcept {
  try {
    const bool all_have_come = !job->lines || say_goodbye(*job);
    std::string problem;
    if (!job->record->is_told()) {
      problem = problem_of(*job);
      if (problem.empty()) {
        problem = ask_checks(*job, all_have_come);
      }
    }
    close_groups(*job, all_have_come);
    if (problem.empty() && !job->record->is_told() && !is_failing()) {
      problem =
          early_problem(*job, all_have_come ? milliseconds(0) : kHearPatience);
    }
    job->world.reset();
    job->store.reset();
    if (job->lines && all_have_come) {
      // Rank 0 has closed the store: a next job does not find it.
      job->lines->wait_for_rank_0(kLeaveTimeout);
    }
    return problem;
  } catch (...) {
    return text_of(std::current_exception());
  }
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
