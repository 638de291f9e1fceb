#include "launcher/machine/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace launcher {
namespace {

bool is_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

}  // namespace

SignalScope::SignalScope(const std::vector<int>& signals) {
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGCHLD);
  for (const int number : signals) {
    if (!is_ignored(number)) {
      ::sigaddset(&mask, number);
    }
  }
  check(::sigprocmask(SIG_BLOCK, &mask, &old_mask_), "sigprocmask");
  fd_.reset(
      check(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd"));
}

SignalScope::~SignalScope() {
  read([](int) {});  // a pending signal would otherwise end the process
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

void SignalScope::read(const std::function<void(int number)>& handle) const {
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof(info)) ==
         static_cast<ssize_t>(sizeof(info))) {
    handle(static_cast<int>(info.ssi_signo));
  }
}

std::vector<int> signals_of_programs() {
  // Excludes SIGPROF and SIGVTALRM: profilers of ddprun itself use their
  // timers.
  std::vector<int> signals{
      SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, SIGIO, SIGPWR, SIGSTKFLT};
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) {
    signals.push_back(number);
  }
  return signals;
}

void stop_as_by_keyboard() {
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  ::kill(::getpid(), SIGCONT);  // one signal with the SIGCONT of a shell
}

}  // namespace launcher
