// on_signal ignore|exit|show: prints "ready", then handles signals: ignores all
// known signals, exits with 0 at a signal, or prints the number of each signal
// and continues.
#include <unistd.h>
#include <csignal>
#include <string>

#include "child.h"

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
  }
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  say("ready");
  for (;;) {
    int number = 0;
    sigwait(&signals, &number);
    if (what != "ignore") {
      say(("signal " + std::to_string(number)).c_str());
    }
    if (what == "exit") {
      return 0;
    }
  }
}
