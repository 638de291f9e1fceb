// on_signal ignore|exit|show|catch: prints "ready", then handles signals:
// ignores all known signals, exits with 0 at a signal, or prints the number of
// each signal and continues. "catch" has handlers, the others wait by
// sigwait(); at a signal it prints the number and exits with 7.
#include <unistd.h>
#include <csignal>
#include <string>

#include "child.h"

namespace {

volatile std::sig_atomic_t caught = 0;

void note(int number) {
  caught = number;
}

}  // namespace

int main(int, char** argv) {
  const std::string what = argv[1];
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM,
                           SIGINT,
                           SIGHUP,
                           SIGQUIT,
                           SIGUSR1,
                           SIGUSR2,
                           SIGALRM,
                           SIGXCPU,
                           SIGRTMIN + 3}) {
    sigaddset(&signals, number);
    if (what == "catch") {
      std::signal(number, note);
    }
  }
  sigset_t before;
  sigprocmask(SIG_BLOCK, &signals, &before);
  say("ready");
  for (;;) {
    int number = 0;
    if (what == "catch") {
      sigsuspend(&before);
      number = caught;
    } else {
      sigwait(&signals, &number);
    }
    if (what != "ignore") {
      say(("signal " + std::to_string(number)).c_str());
    }
    if (what == "catch") {
      return 7;
    }
    if (what == "exit") {
      return 0;
    }
  }
}
