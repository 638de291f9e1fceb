#include "samples/support/text.h"

#include <ddp/process_group.h>

#include <cstdarg>
#include <cstdio>
#include <iostream>

namespace samples {

std::string format(const char* pattern, ...) {
  va_list arguments, copy;
  va_start(arguments, pattern);
  va_copy(copy, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, copy);
  va_end(copy);
  std::string text(static_cast<size_t>(length), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string count_of(int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

void print(const std::string& line) {
  std::cout << line + "\n" << std::flush;
}

void print_on_first(const std::string& line) {
  if (ddp::rank() == 0) {
    print(line);
  }
}

}  // namespace samples
