// die_by_signal NUMBER: rank 0 kills itself by signal NUMBER; the other ranks
// wait forever.
#include <sys/resource.h>
#include <unistd.h>
#include <csignal>

#include "child.h"

int main(int, char** argv) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (rank() == 0) {
    // A sanitizer may have installed a handler.
    std::signal(std::atoi(argv[1]), SIG_DFL);
    raise(std::atoi(argv[1]));
  }
  pause();
}
