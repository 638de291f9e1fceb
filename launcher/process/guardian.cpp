#include "launcher/process/guardian.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <vector>

#include "launcher/error.h"
#include "launcher/process/descendants.h"
#include "launcher/process/process_title.h"

namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// False when none came until the deadline.
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

void hand_on(int number, pid_t supervisor) {
  if (number == SIGCONT) {
    return;  // it was told below
  }
  ::kill(supervisor, number);
  if (number == SIGTSTP) {
    stop_as_by_keyboard();
    ::kill(supervisor, SIGCONT);
  }
}

/// Reaps who else has ended on the way: helpers, as their shell would have.
std::optional<ExitStatus> reap(pid_t supervisor) {
  reap_children([supervisor](pid_t pid) { return pid == supervisor; });
  const auto end = peek_child(supervisor);
  if (end) {
    ::waitpid(supervisor, nullptr, 0);
  }
  return end;
}

ExitStatus guard(pid_t supervisor, const SignalScope& signals) {
  std::optional<ExitStatus> end;
  while (!end) {
    await_signal(signals);
    signals.read([&](int number) {
      if (end) {
        return;
      }
      if (number == SIGCHLD) {
        end = reap(supervisor);
      } else {
        hand_on(number, supervisor);
      }
    });
  }
  return *end;
}

std::vector<pid_t> children_now() {
  return has_children() ? own_children() : std::vector<pid_t>();
}

/// New children, if they are not in our session: a worker has one of its own,
/// and nobody can come back from there.
std::vector<pid_t> children_of_job(const std::vector<pid_t>& earlier) {
  std::vector<pid_t> children = children_now();
  std::erase_if(children, [&](pid_t pid) {
    return std::find(earlier.begin(), earlier.end(), pid) != earlier.end() ||
           ::getsid(pid) == ::getsid(0);
  });
  return children;
}

/// Nothing, unless the supervisor was killed. Some of it may be beyond SIGKILL,
/// held by a driver: waits for a time.
void end_what_is_left(const JobCgroup& cgroup,
                      const SignalScope& signals,
                      const std::vector<pid_t>& earlier) {
  constexpr std::chrono::seconds kPatience(5);
  const auto deadline = Clock::now() + kPatience;
  do {
    signals.read([](int) {});
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

}  // namespace

int run_guarded(const SignalScope& signals,
                const JobCgroup& cgroup,
                const std::function<int(const Fd& guardians_end)>& supervise) {
  const std::vector<pid_t> earlier = children_now();
  Pipe lifeline = make_pipe();
  become_subreaper();
  const pid_t supervisor = ::fork();
  if (supervisor < 0) {
    throw LaunchError(kExitFailure,
                      "the job cannot be started (no process can be made: " +
                          std::generic_category().message(errno) +
                          "); check ulimit -u");
  }
  if (supervisor == 0) {
    lifeline.write.reset();
    ::setsid();
    become_subreaper();
    set_process_title("ddp-supervisor");
    return supervise(lifeline.read);
  }
  lifeline.read.reset();
  const ExitStatus end = guard(supervisor, signals);
  end_what_is_left(cgroup, signals, earlier);
  if (end.signal != 0) {
    throw LaunchError(end.shell_code(),
                      "its supervisor, process " + std::to_string(supervisor) +
                          ", was killed by " + end.text() +
                          "; the job ended with it");
  }
  return end.shell_code();
}

}  // namespace launcher
