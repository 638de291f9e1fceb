// leave_saver group|session: exits with 0 and leaves a child process, in its
// process group or in a session of its own. The child prints "alone" when its
// parent has ended, and "saved" when it receives SIGTERM.
#include <sys/prctl.h>
#include <unistd.h>
#include <csignal>
#include <string>

#include "child.h"

int main(int, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const pid_t parent = getpid();
  if (fork() != 0) {
    return 0;
  }
  if (std::string(argv[1]) == "session") {
    setsid();
  }
  prctl(PR_SET_PDEATHSIG, SIGUSR1);
  if (getppid() != parent) {
    raise(SIGUSR1);
  }
  for (int number = 0; number != SIGTERM;) {
    sigwait(&signals, &number);
    say(number == SIGTERM ? "saved" : "alone");
  }
}
