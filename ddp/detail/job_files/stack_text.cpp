#include "ddp/detail/job_files/stack_text.h"

#include <csignal>

#include "ddp/detail/number.h"

namespace ddp::detail {

std::optional<int> offered_signal(std::string_view file) {
  const size_t end = file.find('\n');
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  const auto number = parse_number<int>(file.substr(0, end));
  return number && *number > 0 && *number < NSIG ? number : std::nullopt;
}

bool is_whole_stack(std::string_view written) {
  const size_t size = kStackEnd.size();
  return written.size() >= size &&
         written.substr(written.size() - size) == kStackEnd &&
         (written.size() == size || written[written.size() - size - 1] == '\n');
}

}  // namespace ddp::detail
