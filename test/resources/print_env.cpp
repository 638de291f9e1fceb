// print_env NAME...: one line NAME=value for each that is set, then the rank's
// arguments are over.
#include "child.h"

int main(int argc, char** argv) {
  for (int index = 1; index < argc; ++index) {
    if (const char* value = std::getenv(argv[index])) {
      std::printf("%s=%s\n", argv[index], value);
    }
  }
}
