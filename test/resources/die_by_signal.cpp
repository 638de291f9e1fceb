// die_by_signal NUMBER: rank 0 dies by it, the others wait for ever.
#include <sys/resource.h>
#include <unistd.h>
#include <csignal>

#include "child.h"

int main(int, char** argv) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (rank() == 0) {
    std::signal(std::atoi(argv[1]), SIG_DFL);  // a sanitizer may have its own
    raise(std::atoi(argv[1]));
  }
  pause();
}
