#include "launcher/workers/progress/hang_judge.h"

#include <algorithm>

namespace launcher {
namespace {

// The first report marks the start. Until the second report, programs compile,
// read data and warm up.
constexpr int kTimesToSecondReport = 5;
constexpr int kTimesForOtherHosts = 2;

}  // namespace

HangJudge::HangJudge(Milliseconds limit,
                     size_t workers,
                     bool has_other_hosts,
                     Time now)
    : limit_(limit),
      has_other_hosts_(has_other_hosts),
      workers_(workers),
      last_look_(now) {
  for (Worker& worker : workers_) {
    worker.since = now;
  }
}

void HangJudge::expect(size_t worker, const ProgressReading& first) {
  workers_[worker].reading = first;
}

void HangJudge::record(size_t index, const ProgressReading& reading, Time now) {
  Worker& worker = workers_[index];
  const bool is_new = reading.text != worker.reading.text ||
                      reading.stamp != worker.reading.stamp;
  if (is_new) {
    worker.progress = parse_progress(reading.text);
    worker.since = now;
    worker.reports = std::min(worker.reports + 1, 2);
  }
  worker.reading = reading;
}

void HangJudge::forget(size_t worker, Time now) {
  workers_[worker].has_ended = true;
  last_end_ = now;
}

void HangJudge::restart(Time now) {
  for (Worker& worker : workers_) {
    worker.since = now;
  }
  last_look_ = now;
}

std::vector<HangJudge::Verdict> HangJudge::judge(Time now) {
  forgive_absence(now);
  std::vector<Verdict> verdicts;
  for (const Worker* worker : hung(now)) {
    verdicts.push_back({static_cast<size_t>(worker - workers_.data()),
                        quiet_of(*worker, now),
                        limit_of(*worker)});
  }
  return verdicts;
}

HangJudge::Milliseconds HangJudge::interval() const {
  constexpr Milliseconds kLeast{50};
  constexpr Milliseconds kMost{5'000};
  return std::clamp(limit_ / 20, kLeast, kMost);
}

void HangJudge::forgive_absence(Time now) {
  // Shorter gaps are normal on a busy host and do not count as an absence.
  constexpr Milliseconds kLeastAbsence{1'000};
  const auto absence = now - last_look_;
  if (absence > std::max(limit_ / 2, kLeastAbsence)) {
    for (Worker& worker : workers_) {
      worker.since = std::min(worker.since + absence, now);
    }
  }
  last_look_ = now;
}

HangJudge::Milliseconds HangJudge::limit_of(const Worker& worker) const {
  const auto& asked = worker.progress.limit;
  if (asked) {
    return std::max(limit_, asked->time.value_or(limit_ * asked->times));
  }
  return worker.reports < 2 ? limit_ * kTimesToSecondReport : limit_;
}

HangJudge::Milliseconds HangJudge::quiet_of(const Worker& worker, Time now) {
  return std::chrono::duration_cast<Milliseconds>(now - worker.since);
}

bool HangJudge::is_overdue(const Worker& worker, Time now, int times) const {
  return quiet_of(worker, now) > limit_of(worker) * times;
}

bool HangJudge::may_wait(const Worker& worker) const {
  const auto& begun = worker.progress.collectives;
  if (worker.progress.waits || !begun) {
    return worker.progress.waits;
  }
  const auto others = reporters();
  return std::any_of(
      others.begin(), others.end(), [&begun](const Worker* other) {
        const auto& of_other = other->progress.collectives;
        return of_other && *of_other < *begun;
      });
}

std::vector<const HangJudge::Worker*> HangJudge::reporters() const {
  std::vector<const Worker*> result;
  for (const Worker& worker : workers_) {
    if (!worker.has_ended && worker.reports > 0) {
      result.push_back(&worker);
    }
  }
  return result;
}

std::vector<const HangJudge::Worker*> HangJudge::hung(Time now) const {
  const auto all = reporters();
  std::vector<const Worker*> overdue;
  std::copy_if(all.begin(),
               all.end(),
               std::back_inserter(overdue),
               [&](const Worker* worker) { return is_overdue(*worker, now); });
  const auto only = [&overdue](const auto& wanted) {
    std::vector<const Worker*> result;
    std::copy_if(
        overdue.begin(), overdue.end(), std::back_inserter(result), wanted);
    return result;
  };
  auto stopped =
      only([](const Worker* worker) { return worker->reading.is_stopped; });
  if (!stopped.empty()) {
    return stopped;
  }
  auto free = only([this](const Worker* worker) { return !may_wait(*worker); });
  if (!free.empty()) {
    return free;
  }
  if (last_end_ && now - *last_end_ <= limit_) {
    return {};
  }
  const int times = has_other_hosts_ ? kTimesForOtherHosts : 1;
  const bool are_all =
      std::all_of(all.begin(), all.end(), [&](const Worker* worker) {
        return is_overdue(*worker, now, times);
      });
  return are_all ? hung_of_waiting(all) : std::vector<const Worker*>();
}

/// @param all running workers that have reported
std::vector<const HangJudge::Worker*> HangJudge::hung_of_waiting(
    const std::vector<const Worker*>& all) const {
  if (all.empty()) {
    return {};
  }
  std::vector<const Worker*> silent;
  for (const Worker& worker : workers_) {
    if (!worker.has_ended && worker.reports == 0) {
      silent.push_back(&worker);
    }
  }
  if (!silent.empty()) {
    return silent;
  }
  const auto count = [](const Worker* worker) {
    return worker->progress.collectives.value_or(0);
  };
  const int64_t fewest = count(*std::min_element(
      all.begin(), all.end(), [&](const Worker* left, const Worker* right) {
        return count(left) < count(right);
      }));
  std::vector<const Worker*> behind;
  std::copy_if(all.begin(),
               all.end(),
               std::back_inserter(behind),
               [&](const Worker* worker) { return count(worker) == fewest; });
  return behind;
}

}  // namespace launcher
