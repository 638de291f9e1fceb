#include "ddp/job/spawn.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include <ATen/Parallel.h>

#include "ddp/base/cluster/launch_environment.h"
#include "ddp/base/net/tcp.h"
#include "ddp/job/backends.h"
#include "ddp/job/current_job.h"
#include "ddp/job/detail/fork_hazards.h"
#include "ddp/job/detail/forked_process.h"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kKillPatience{10'000};
constexpr milliseconds kCountPatience{60'000};
constexpr int kMostDevices = 255;  // fits into an exit code

/// Bounds a wait. Adds nothing to the limit, so the longest limit cannot
/// overflow.
class Timer {
 public:
  explicit Timer(std::optional<milliseconds> limit) : limit_(limit) {}

  milliseconds left() const {
    return limit_ ? *limit_ - std::chrono::duration_cast<milliseconds>(
                                  Clock::now() - start_)
                  : milliseconds::max();
  }
  bool is_over() const { return left() <= milliseconds(0); }

 private:
  std::optional<milliseconds> limit_;
  Clock::time_point start_ = Clock::now();
};

/// Counts the GPUs in a child process, because CUDA does not work after a fork
/// once it was used.
int count_gpus() {
  std::deque<detail::ForkedProcess> asked;
  asked.emplace_back(
      [] { return std::min(detail::nccl_device_count(), kMostDevices); });
  const Timer timer(kCountPatience);
  auto end = asked.front().reap();
  for (; !end && !timer.is_over(); end = asked.front().reap()) {
    detail::wait_for_any(asked, timer.left());
  }
  TORCH_CHECK(end && end->signal == 0 && !end->exception,
              "Expected CUDA to say how many GPUs there are, but it did not; "
              "give spawn the number of processes");
  return end->exit_code;
}

int choose_count(std::optional<int> nprocs) {
  TORCH_CHECK(!nprocs || *nprocs > 0,
              "Expected at least one process to spawn, but got nprocs=",
              *nprocs);
  return nprocs ? *nprocs : std::max(count_gpus(), 1);
}

void check_fork() {
  const auto problem = detail::fork_problem(detail::find_fork_hazards());
  TORCH_CHECK(problem.empty(), problem);
}

void enter_rank(const detail::LaunchEnvironment& environment) {
  const bool is_limited = environment.count("OMP_NUM_THREADS") > 0;
  for (const auto& [name, value] : environment) {
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  if (is_limited) {
    at::set_num_threads(1);  // OpenMP has read its variable already
  }
}

}  // namespace

std::string describe(const RankFailure& failure) {
  const std::string who = "rank " + std::to_string(failure.rank);
  if (failure.exception) {
    return who + " threw: " + *failure.exception;
  }
  if (failure.signal != 0) {
    return who + " was ended by signal " + std::to_string(failure.signal) +
           " (" + ::strsignal(failure.signal) + ")";
  }
  return who + " exited with code " + std::to_string(failure.exit_code);
}

SpawnError::SpawnError(RankFailure failure)
    : c10::Error(describe(failure)), failure_(std::move(failure)) {}

struct SpawnContext::State {
  explicit State(const SpawnOptions& asked) : options(asked) {}
  ~State();

  void start(const std::function<void(int)>& function, int count);
  bool is_running() const;
  void signal_all(int number) const;
  bool wait(const Timer& timer);
  void stop();

  SpawnOptions options;
  detail::ReservedPort port = detail::reserve_loopback_port();
  std::deque<detail::ForkedProcess> ranks;
  std::vector<RankFailure> failures;
  Clock::time_point last_look = Clock::now();
};

SpawnContext::State::~State() {
  signal_all(SIGKILL);  // signal all of them first, then wait for each
}

void SpawnContext::State::start(const std::function<void(int)>& function,
                                int count) {
  for (int rank = 0; rank < count; ++rank) {
    const auto environment = detail::launch_environment(
        detail::local_worker(rank, count, port.port, "spawn"), std::getenv);
    try {
      // Reports the exception to the other ranks, which name it in their
      // errors.
      ranks.emplace_back(
          [&] {
            port.socket = {};  // rank 0 listens on this port
            enter_rank(environment);
            function(rank);
            return 0;
          },
          &detail::report_fatal_error);
    } catch (const std::system_error& error) {
      TORCH_CHECK(false,
                  "Cannot start rank ",
                  rank,
                  " of ",
                  count,
                  ": ",
                  error.what(),
                  "; check ulimit -a, or start fewer");
    }
  }
}

bool SpawnContext::State::is_running() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) {
    return !rank.is_reaped();
  });
}

void SpawnContext::State::signal_all(int number) const {
  for (const auto& rank : ranks) {
    rank.signal(number);
  }
}

/// Waits for the end of a rank and records all failures.
bool SpawnContext::State::wait(const Timer& timer) {
  const auto begin = Clock::now();
  if (!detail::wait_for_any(ranks, timer.left())) {
    last_look = begin;  // all of them ran
    return !timer.is_over();
  }
  const auto last_seen = std::exchange(last_look, Clock::now());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].is_reaped()) {
      continue;
    }
    const auto end = ranks[i].reap();
    if (!end || (end->exit_code == 0 && end->signal == 0)) {
      continue;
    }
    RankFailure failure;
    failure.rank = static_cast<int>(i);
    failure.pid = ranks[i].pid();
    failure.exit_code = end->exit_code;
    failure.signal = end->signal;
    failure.time = last_seen;
    if (end->exception) {
      failure.exception = end->exception->text;
      failure.time = end->exception->time;
      failure.exit_code = 1;
      failure.signal = 0;  // a signal may have ended it after its exception
    }
    failures.push_back(std::move(failure));
  }
  return true;
}

void SpawnContext::State::stop() {
  signal_all(SIGTERM);
  const Timer grace(options.grace_period());
  while (is_running() && wait(grace)) {
  }
  signal_all(SIGKILL);
  const Timer patience(kKillPatience);
  while (is_running() && wait(patience)) {
  }
}

SpawnContext::SpawnContext(const std::function<void(int)>& function,
                           std::optional<int> nprocs,
                           const SpawnOptions& options) {
  TORCH_CHECK(function != nullptr,
              "Expected a function to spawn, but got an empty one");
  check_fork();
  const int count = choose_count(nprocs);
  state_ = std::make_unique<State>(options);
  TORCH_CHECK(state_->port.error == 0,
              "Cannot reserve a port of 127.0.0.1 for MASTER_PORT: ",
              std::strerror(state_->port.error));
  state_->start(function, count);
}

SpawnContext::~SpawnContext() = default;
SpawnContext::SpawnContext(SpawnContext&&) noexcept = default;
SpawnContext& SpawnContext::operator=(SpawnContext&&) noexcept = default;

bool SpawnContext::join(std::optional<milliseconds> timeout) {
  State& state = *state_;
  const Timer timer(timeout);
  while (state.failures.empty() && state.is_running()) {
    if (!state.wait(timer)) {
      return false;
    }
  }
  if (state.failures.empty()) {
    return true;
  }
  state.stop();
  // Other ranks fail later, because their peer is gone.
  throw SpawnError(*std::min_element(
      state.failures.begin(),
      state.failures.end(),
      [](const auto& a, const auto& b) { return a.time < b.time; }));
}

std::vector<pid_t> SpawnContext::pids() const {
  std::vector<pid_t> result;
  for (const auto& rank : state_->ranks) {
    result.push_back(rank.pid());
  }
  return result;
}

void spawn(const std::function<void(int)>& function,
           std::optional<int> nprocs,
           const SpawnOptions& options) {
  SpawnContext(function, nprocs, options).join();
}

}  // namespace ddp
