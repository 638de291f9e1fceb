// A wrapper that SIGTERM kills at once, and its child, which prints "saved"
// only when its parent has died. Models a shell script around a trainer that
// writes a checkpoint.
#include <sys/prctl.h>
#include <unistd.h>
#include <csignal>

#include "child.h"

int main() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    say("ready");
    for (int number = 0; number != SIGUSR1;) {
      sigwait(&signals, &number);
    }
    say("saved");
    return 0;
  }
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  pause();
}
