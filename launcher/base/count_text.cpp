#include "launcher/base/count_text.h"

namespace launcher {

std::string count_text(int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace launcher
