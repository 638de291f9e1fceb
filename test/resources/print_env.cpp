// print_env NAME...: prints one line NAME=value for each variable that is set.
#include "child.h"

int main(int argc, char** argv) {
  for (int index = 1; index < argc; ++index) {
    if (const char* value = std::getenv(argv[index])) {
      std::printf("%s=%s\n", argv[index], value);
    }
  }
}
