#include "launcher/job/guardian.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "ddp/base/child_process.h"
#include "launcher/base/error.h"
#include "launcher/base/signal_names.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/descendants.h"
#include "launcher/machine/pending_signal.h"

namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// Blocks until a signal is readable. Returns false if the deadline passes
/// first.
bool await_signal(const SignalScope& signals,
                  std::optional<Clock::time_point> deadline = {}) {
  using namespace std::chrono;
  pollfd ready{signals.fd(), POLLIN, 0};
  const auto left_ms = [&] {
    const auto left = ceil<milliseconds>(*deadline - Clock::now());
    return static_cast<int>(std::max(left, milliseconds(0)).count());
  };
  return retry_interrupted(
             [&] { return ::poll(&ready, 1, deadline ? left_ms() : -1); }) > 0;
}

/// The guardian's handle of the supervisor process.
class SupervisorProcess {
 public:
  SupervisorProcess(pid_t pid,
                    const std::vector<int>& stops,
                    std::chrono::milliseconds grace_period)
      : pid_(pid), stops_(stops), grace_period_(grace_period) {}

  pid_t pid() const { return pid_; }
  const std::optional<ExitStatus>& end() const { return end_; }

  /// Returns the time of the next call of check_pending_stop(); std::nullopt
  /// unless the supervisor has a pending stop signal.
  std::optional<Clock::time_point> next_check() const {
    return stop_.is_open() ? std::optional(next_look_) : std::nullopt;
  }

  void on_signal(int number) {
    if (end_) {
      return;
    }
    if (number == SIGCHLD) {
      reap();
    } else if (number != SIGCONT) {  // forward() has already sent SIGCONT
      forward(number);
    }
  }

  /// Checks whether the supervisor has handled the last stop signal. If it has
  /// not for five seconds, sends the signal to the workers. Kills the
  /// supervisor after the workers have ended, their grace period is over, or
  /// another stop signal has arrived. Gives up five seconds later: a process
  /// that the kernel holds may survive even SIGKILL.
  void check_pending_stop() {
    constexpr int kPatience = 5;
    next_look_ = Clock::now() + kBetweenLooks;
    const int looks = stop_.record_check(is_pending(pid_, stop_.number()));
    if (looks == 0) {
      passed_on_at_.reset();
    } else if (killed_at_) {
      is_given_up_ = looks >= *killed_at_ + kPatience;
    } else if (looks == kPatience) {
      passed_on_at_ = looks;
      is_asked_again_ = false;
      for (const pid_t worker : session_leaders_of(pid_)) {
        ::kill(-worker, SIGCONT);
        ::kill(-worker, stop_.number());
      }
    }
    if (passed_on_at_ && !killed_at_ &&
        (is_asked_again_ || session_leaders_of(pid_).empty() ||
         (looks - *passed_on_at_) * kBetweenLooks >= grace_period_)) {
      killed_at_ = looks;
      neglected_signal_ = stop_.number();
      ::kill(pid_, SIGKILL);
    }
  }

  /// Returns the ignored stop signal after which the supervisor was killed; 0
  /// if it was not killed.
  int neglected_signal() const { return neglected_signal_; }
  bool is_given_up() const { return is_given_up_; }

 private:
  static constexpr std::chrono::seconds kBetweenLooks{1};

  void forward(int number) {
    ::kill(pid_, number);
    if (number == SIGTSTP) {
      stop_as_by_keyboard();
      ::kill(pid_, SIGCONT);
    } else if (std::count(stops_.begin(), stops_.end(), number) > 0) {
      is_asked_again_ = stop_.is_open();
      if (!stop_.is_open()) {
        stop_.set(number);
        next_look_ = Clock::now() + kBetweenLooks;
      }
    }
  }

  /// Reaps the supervisor if it has ended, and other ended children such as
  /// helpers.
  void reap() {
    reap_children([this](pid_t child) { return child == pid_; });
    end_ = peek_child(pid_);
    if (end_) {
      ::waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid_;
  const std::vector<int>& stops_;
  std::chrono::milliseconds grace_period_;
  std::optional<ExitStatus> end_;
  PendingSignal stop_;
  Clock::time_point next_look_;
  bool is_asked_again_ = false;  // by another stop signal after the first
  // Check at which the workers were signalled.
  std::optional<int> passed_on_at_;
  std::optional<int> killed_at_;  // the check at which it was killed
  int neglected_signal_ = 0;
  bool is_given_up_ = false;
};

void guard(SupervisorProcess& supervisor, const SignalScope& signals) {
  while (!supervisor.end() && !supervisor.is_given_up()) {
    await_signal(signals, supervisor.next_check());
    signals.read([&](int number, pid_t) { supervisor.on_signal(number); });
    const auto next_check = supervisor.next_check();
    if (!supervisor.end() && next_check && *next_check <= Clock::now()) {
      supervisor.check_pending_stop();
    }
  }
}

std::vector<pid_t> children_now() {
  return has_children() ? own_children() : std::vector<pid_t>();
}

/// Returns new children that are not in our session. Workers have sessions of
/// their own, and a process cannot return to an earlier session.
std::vector<pid_t> children_of_job(const std::vector<pid_t>& earlier) {
  std::vector<pid_t> children = children_now();
  std::erase_if(children, [&](pid_t pid) {
    return std::find(earlier.begin(), earlier.end(), pid) != earlier.end() ||
           ::getsid(pid) == ::getsid(0);
  });
  return children;
}

/// Kills the job's processes that a killed supervisor has left. Does nothing if
/// there are none. Waits at most five seconds, because a driver may keep a
/// process from ending even after SIGKILL.
void kill_remaining_processes(const JobCgroup& cgroup,
                              const SignalScope& signals,
                              const std::vector<pid_t>& earlier) {
  constexpr std::chrono::seconds kPatience(5);
  const auto deadline = Clock::now() + kPatience;
  do {
    signals.read([](int, pid_t) {});
    reap_children([](pid_t) { return false; });
    const auto children = children_of_job(earlier);
    if (children.empty()) {
      return;
    }
    cgroup.kill();
    for (const pid_t child : children) {
      signal_child(child, SIGKILL);
      kill_descendants(child);
    }
  } while (await_signal(signals, deadline));
}

std::string name_of(const SupervisorProcess& supervisor) {
  return "its supervisor, process " + std::to_string(supervisor.pid()) + ", ";
}

std::string neglect_text(const SupervisorProcess& supervisor) {
  return name_of(supervisor) + "did not take " +
         signal_name(supervisor.neglected_signal()) +
         ": it was stopped, or the kernel held it (a file server that does "
         "not answer?); the workers got the signal without it, and the job was "
         "killed" +
         (supervisor.is_given_up() ? ", but that process is still there" : "");
}

/// Sets the name and the command line that tools (ps, top, pkill) show for this
/// process. Each is truncated to the space of the old one.
void set_process_title(const std::string& title) {
  ::prctl(PR_SET_NAME, title.c_str());
  // "pid (name) state ...": fields 48 and 49 hold the address range of the
  // arguments. The name may contain any characters, including ")".
  const std::string stat = read_text("/proc/self/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  constexpr int kFirst = 3;
  constexpr int kArgumentsBegin = 48;
  std::string skipped;
  for (int field = kFirst; field < kArgumentsBegin; ++field) {
    fields >> skipped;
  }
  uintptr_t begin = 0;
  uintptr_t end = 0;
  if (fields >> begin >> end && begin < end) {
    char* arguments = reinterpret_cast<char*>(begin);
    std::memset(arguments, 0, end - begin);
    std::memcpy(
        arguments, title.data(), std::min(title.size(), end - begin - 1));
  }
}

/// The supervisor outlives this process by what it needs to end the job.
pid_t fork_supervisor() {
  try {
    return ddp::detail::fork_child({.death_signal = 0});
  } catch (const std::system_error& error) {
    throw LaunchError(kExitFailure,
                      "the job cannot be started (no process can be made: " +
                          error.code().message() + "); check ulimit -u");
  }
}

}  // namespace

int run_guarded(const SignalScope& signals,
                const JobCgroup& cgroup,
                const std::vector<int>& stops,
                std::chrono::milliseconds grace_period,
                const std::function<int(const Fd& guardians_end)>& supervise) {
  const std::vector<pid_t> earlier = children_now();
  Pipe lifeline = make_pipe();
  become_subreaper();
  const pid_t supervisor = fork_supervisor();
  if (supervisor == 0) {
    lifeline.write.reset();
    ::setsid();
    become_subreaper();
    set_process_title("ddp-supervisor");
    return supervise(lifeline.read);
  }
  lifeline.read.reset();
  SupervisorProcess supervised(supervisor, stops, grace_period);
  guard(supervised, signals);
  kill_remaining_processes(cgroup, signals, earlier);
  if (supervised.is_given_up()) {
    // Skip the removal of the job's files: it might block like the supervisor.
    std::fprintf(stderr, "ddprun: %s\n", neglect_text(supervised).c_str());
    ::_exit(128 + supervised.neglected_signal());
  }
  const ExitStatus end = *supervised.end();
  if (supervised.neglected_signal() != 0) {
    throw LaunchError(128 + supervised.neglected_signal(),
                      neglect_text(supervised));
  }
  if (end.signal != 0) {
    throw LaunchError(end.shell_code(),
                      name_of(supervised) + "was killed by " + end.text() +
                          "; the job ended with it");
  }
  return end.shell_code();
}

}  // namespace launcher
