// exit_with CODE RANK [TEXT]: rank RANK writes TEXT to stderr and exits with
// CODE immediately; the other ranks wait forever.
#include <unistd.h>

#include "child.h"

int main(int argc, char** argv) {
  if (rank() != std::atoi(argv[2])) {
    pause();
  }
  if (argc > 3) {
    std::fprintf(stderr, "%s\n", argv[3]);
  }
  return std::atoi(argv[1]);
}
