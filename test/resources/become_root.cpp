// A setuid program that becomes root's altogether, as sudo does, and says its
// process; then waits for ever.
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
