#include "launcher/workers/progress/progress_watch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launcher/machine/process_state.h"
#include "launcher/workers/output/run_directory.h"

namespace launcher {
namespace {

constexpr const char* kLookTimer = "progress";

constexpr int kReading =
    O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC;

/// Returns std::nullopt for no regular file: a worker may have created any file
/// type.
std::optional<ProgressReading> read_progress(const Fd& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  ProgressReading reading;
  reading.text.resize(kMostProgressBytes);
  const ssize_t size = retry_interrupted([&] {
    return ::pread(file.get(), reading.text.data(), reading.text.size(), 0);
  });
  reading.text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  reading.stamp =
      int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  return reading;
}

}  // namespace

ProgressWatch::ProgressWatch(EventLoop& loop,
                             const LaunchPlan& plan,
                             std::function<bool()> is_held_up,
                             Handler handler)
    : loop_(loop),
      is_held_up_(std::move(is_held_up)),
      handler_(std::move(handler)),
      timeout_(plan.hang_timeout.value()),
      judge_(timeout_,
             plan.workers.size(),
             plan.has_other_hosts,
             std::chrono::steady_clock::now()) {
  for (const WorkerSpec& spec : plan.workers) {
    create_log(spec.progress_file, 0600);
    Fd created(::open(spec.progress_file.c_str(), kReading));
    judge_.expect(workers_.size(),
                  read_progress(created).value_or(ProgressReading()));
    workers_.push_back({.rank = spec.rank,
                        .local_rank = spec.local_rank,
                        .file = spec.progress_file,
                        .created = std::move(created)});
  }
  resume();
}

ProgressWatch::~ProgressWatch() {
  pause();
  for (const Watched& worker : workers_) {
    ::unlink(worker.file.c_str());
  }
}

void ProgressWatch::watch(int local_rank, pid_t pid) {
  workers_[static_cast<size_t>(local_rank)].pid = pid;
}

void ProgressWatch::forget(int local_rank) {
  judge_.forget(static_cast<size_t>(local_rank),
                std::chrono::steady_clock::now());
}

void ProgressWatch::pause() {
  loop_.disarm_timer(kLookTimer);
}

void ProgressWatch::resume() {
  judge_.restart(std::chrono::steady_clock::now());
  arm_poll();
}

void ProgressWatch::arm_poll() {
  loop_.arm_timer(kLookTimer, judge_.interval(), [this] { poll(); });
}

void ProgressWatch::poll() {
  const auto now = std::chrono::steady_clock::now();
  for (size_t index = 0; index < workers_.size(); ++index) {
    read(index, now);
  }
  if (is_held_up_()) {
    judge_.restart(now);
  }
  const auto verdicts = judge_.judge(now);
  if (verdicts.empty()) {
    arm_poll();
  } else {
    handler_(hang_of(verdicts));
  }
}

void ProgressWatch::read(size_t worker,
                         std::chrono::steady_clock::time_point now) {
  if (!judge_.is_watched(worker)) {
    return;
  }
  const Watched& watched = workers_[worker];
  const Fd current(::open(watched.file.c_str(), kReading));
  if (auto reading = read_progress(current ? current : watched.created)) {
    reading->is_stopped = is_stopped(reporter(worker));
    judge_.record(worker, *reading, now);
  }
}

Hang ProgressWatch::hang_of(
    const std::vector<HangJudge::Verdict>& verdicts) const {
  Hang hang;
  for (const HangJudge::Verdict& verdict : verdicts) {
    hang.workers.push_back(hung_worker(verdict));
  }
  hang.others = reports_except(hang.workers);
  hang.timeout = timeout_;
  return hang;
}

HungWorker ProgressWatch::hung_worker(const HangJudge::Verdict& verdict) const {
  const Watched& watched = workers_[verdict.worker];
  HungWorker hung;
  hung.rank = watched.rank;
  hung.local_rank = watched.local_rank;
  hung.pid = reporter(verdict.worker);
  hung.quiet = verdict.quiet;
  hung.limit = verdict.limit;
  hung.has_reported = judge_.has_reported(verdict.worker);
  hung.last_report = describe(judge_.progress_of(verdict.worker));
  hung.is_stopped = is_stopped(hung.pid);
  return hung;
}

std::vector<RankReport> ProgressWatch::reports_except(
    const std::vector<HungWorker>& hung) const {
  std::vector<RankReport> others;
  for (size_t index = 0; index < workers_.size(); ++index) {
    const Watched& worker = workers_[index];
    const bool is_other = std::none_of(
        hung.begin(), hung.end(), [&worker](const HungWorker& entry) {
          return entry.local_rank == worker.local_rank;
        });
    if (is_other && judge_.is_watched(index)) {
      others.push_back({worker.rank,
                        judge_.has_reported(index),
                        describe(judge_.progress_of(index))});
    }
  }
  return others;
}

pid_t ProgressWatch::reporter(size_t worker) const {
  return reporter_of(workers_[worker].pid, judge_.progress_of(worker).pid);
}

}  // namespace launcher
