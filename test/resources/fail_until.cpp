// fail_until ATTEMPT: before attempt ATTEMPT, rank 1 exits with code 3 and the
// other ranks wait; from ATTEMPT on all ranks exit with 0. Every rank prints
// its port.
#include <unistd.h>

#include "child.h"

int main(int, char** argv) {
  std::printf("attempt %d port %s\n", attempt(), std::getenv("MASTER_PORT"));
  std::fflush(stdout);
  if (attempt() >= std::atoi(argv[1])) {
    return 0;
  }
  if (rank() == 1) {
    return 3;
  }
  pause();
}
