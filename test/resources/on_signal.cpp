// on_signal ignore|exit|show: says "ready", then ignores all signals it knows,
// exits 0 on one, or shows each one's number and goes on.
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
