// Fails in the same way as a Python worker under torch's `record`.
#include "child.h"

int main() {
  std::FILE* file = std::fopen(std::getenv("TORCHELASTIC_ERROR_FILE"), "w");
  std::fputs(R"({"message":{"message":"ValueError: bad loss"}})", file);
  std::fclose(file);
  return 1;
}
