#include "ddp/base/text/record.h"

#include <charconv>
#include <system_error>

namespace ddp::detail {

std::string join_fields(const std::vector<std::string>& fields) {
  std::string text;
  for (const auto& field : fields) {
    text += std::to_string(field.size()) + ":" + field;
  }
  return text;
}

std::optional<std::vector<std::string>> split_fields(std::string_view text) {
  std::vector<std::string> fields;
  while (!text.empty()) {
    size_t size = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), size);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (error != std::errc() || text.empty() || text.front() != ':' ||
        size > text.size() - 1) {
      return std::nullopt;
    }
    fields.emplace_back(text.substr(1, size));
    text.remove_prefix(1 + size);
  }
  return fields;
}

}  // namespace ddp::detail
