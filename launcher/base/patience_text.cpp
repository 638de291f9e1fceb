#include "launcher/base/patience_text.h"

namespace launcher {

std::string patience_text(std::chrono::milliseconds time) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  return whole == time ? std::to_string(whole.count()) + " s"
                       : std::to_string(time.count()) + " ms";
}

}  // namespace launcher
