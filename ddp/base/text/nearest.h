#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::detail {

/// Pure: the number of characters to insert, delete or replace to turn one text
/// into the other.
size_t edit_distance(std::string_view first, std::string_view second);

/// Pure: returns the known name that was probably meant: a name that begins
/// with the text, else the name with the smallest edit distance, if the
/// distance is at most a third of the text. Returns "" if there is none.
///
/// Example:
/// @code
///   nearest("time_out", {"timeout", "is_host"});  // "timeout"
/// @endcode
std::string nearest(std::string_view text,
                    const std::vector<std::string>& known);

/// Returns " (did you mean NAME?)", or "" without a probable name.
///
/// @param prefix  printed before the name, such as "--".
std::string did_you_mean(std::string_view text,
                         const std::vector<std::string>& known,
                         const std::string& prefix = "");

}  // namespace ddp::detail
