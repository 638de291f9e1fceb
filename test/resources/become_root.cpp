// A setuid program that sets all its user ids to root, as sudo does, prints its
// process id and then waits forever.
#include <unistd.h>

#include <cstdio>

int main() {
  if (::setresuid(0, 0, 0) != 0) {
    std::perror("setresuid");
    return 1;
  }
  std::printf("root's %d\n", ::getpid());
  std::fflush(stdout);
  for (;;) {
    ::pause();
  }
}
