#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::detail {

/// Joins fields of any bytes into one text: of each field its length, a colon
/// and the field, as in "2:on0:3:off". Used for all messages among ranks that
/// are lists of texts.
std::string join_fields(const std::vector<std::string>& fields);

/// Returns the fields of a text that `join_fields` has made; std::nullopt for
/// any other text.
std::optional<std::vector<std::string>> split_fields(std::string_view text);

}  // namespace ddp::detail
