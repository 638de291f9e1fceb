#include "launcher/machine/watcher.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "ddp/base/child_process.h"
#include "launcher/machine/process_state.h"

namespace launcher {
namespace {

/// A message is the id of a group that is added, or minus the id of a group
/// that is removed. A pipe keeps short messages whole.
void send(int fd, pid_t message) {
  [[maybe_unused]] const auto size = ::write(fd, &message, sizeof(message));
}

[[noreturn]] void watch(int groups_fd, const JobCgroup& cgroup) {
  ::setsid();
  ::prctl(PR_SET_NAME, "ddp-watcher");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // A copy of a pipe or socket would keep it open after ddprun's end.
  for (const int fd : open_descriptors()) {
    if (fd != groups_fd) {
      ::close(fd);
    }
  }
  std::set<pid_t> groups;
  pid_t message = 0;
  while (::read(groups_fd, &message, sizeof(message)) == sizeof(message)) {
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) {
    ::kill(-group, SIGKILL);
  }
  cgroup.kill_and_remove();
  ::_exit(0);
}

}  // namespace

Watcher::Watcher(const JobCgroup& cgroup) {
  Pipe pipe = make_pipe();
  // Else a stopped watcher would block ddprun when the pipe is full.
  check(::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK), "fcntl");
  pid_ = ddp::detail::fork_child({.death_signal = 0, .signals_end = false});
  if (pid_ == 0) {
    watch(pipe.read.get(), cgroup);
  }
  groups_ = std::move(pipe.write);
}

Watcher::~Watcher() {
  ::kill(pid_, SIGKILL);
  retry_interrupted([&] { return ::waitpid(pid_, nullptr, __WCLONE); });
}

void Watcher::remove(pid_t group) const {
  send(groups_.get(), -group);
}

void add_own_group(int watcher_fd) {
  send(watcher_fd, ::getpid());
}

}  // namespace launcher
