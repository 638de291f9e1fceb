// spam_output LINES CODE: prints numbered lines of different lengths, in writes
// that do not end at line ends, without a newline after the last line. Prints
// "done" to stderr and exits with CODE.
#include <unistd.h>
#include <algorithm>
#include <string>

#include "child.h"

int main(int, char** argv) {
  std::string text;
  const int lines = std::atoi(argv[1]);
  for (int line = 0; line < lines; ++line) {
    text += std::to_string(line) + std::string(line % 61, 'a' + rank() % 26);
    text += line + 1 < lines ? "\n" : "";
  }
  for (size_t at = 0; at < text.size();) {
    const ssize_t size =
        write(1, text.data() + at, std::min<size_t>(text.size() - at, 777));
    if (size < 0) {
      return 99;
    }
    at += static_cast<size_t>(size);
  }
  std::fprintf(stderr, "done\n");
  return std::atoi(argv[2]);
}
