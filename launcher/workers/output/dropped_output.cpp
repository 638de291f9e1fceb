#include "launcher/workers/output/dropped_output.h"

#include <system_error>
#include <utility>

#include "launcher/base/text.h"

namespace launcher {

void DroppedOutput::add(const std::string& place, size_t bytes, int error) {
  Loss& loss = lost_[place];
  loss.bytes += bytes;
  loss.error = error;
  if (error != 0 && warn_) {
    const Warn warn = std::exchange(warn_, nullptr);
    warn(place + " cannot be written (" +
         std::generic_category().message(error) +
         "); the job goes on, but output is lost until it can");
  }
}

int DroppedOutput::error_of(const std::string& place) const {
  const auto found = lost_.find(place);
  return found == lost_.end() ? 0 : found->second.error;
}

std::string DroppedOutput::summary() const {
  constexpr size_t kMostNamed = 3;
  if (empty()) {
    return "";
  }
  std::string text = "output was lost, so this is no success:";
  size_t named = 0;
  for (const auto& [place, loss] : lost_) {
    if (named == kMostNamed) {
      return text + " and of " +
             count_text(static_cast<int64_t>(lost_.size() - named),
                        "other file");
    }
    text +=
        (named++ > 0 ? ", " : " ") +
        (loss.bytes > 0 ? count_text(static_cast<int64_t>(loss.bytes), "byte")
                        : "the end") +
        " of " + place;
  }
  return text;
}

}  // namespace launcher
