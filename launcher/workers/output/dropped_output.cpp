#include "launcher/workers/output/dropped_output.h"

#include <system_error>
#include <utility>

#include "launcher/base/text.h"

namespace launcher {

void DroppedOutput::add(const std::string& place, size_t bytes, int error) {
  bytes_[place] += bytes;
  if (const Teller tell = std::exchange(tell_, nullptr)) {
    tell(place + " cannot be written (" +
         std::generic_category().message(error) +
         "); the job goes on, but output is lost until it can");
  }
}

std::string DroppedOutput::summary() const {
  constexpr size_t kMostNamed = 3;
  if (empty()) {
    return "";
  }
  std::string text = "output was lost, so this is no success:";
  size_t named = 0;
  for (const auto& [place, bytes] : bytes_) {
    if (named == kMostNamed) {
      return text + " and of " +
             count_text(static_cast<int64_t>(bytes_.size() - named),
                        "other file");
    }
    text += (named++ > 0 ? ", " : " ") +
            (bytes > 0 ? count_text(static_cast<int64_t>(bytes), "byte")
                       : "the end") +
            " of " + place;
  }
  return text;
}

}  // namespace launcher
