#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::detail {

/// Letters to insert, drop or replace until one text is the other. Pure.
size_t edit_distance(std::string_view first, std::string_view second);

/// Which of the known names was probably meant: one that begins with the text,
/// else the one of the least distance, if that is at most a third of the text.
/// Empty when there is none. Pure.
///
/// Example:
/// @code
///   nearest("time_out", {"timeout", "is_host"});  // "timeout"
/// @endcode
std::string nearest(std::string_view text,
                    const std::vector<std::string>& known);

/// " (did you mean NAME?)", or nothing.
///
/// @param prefix before the name, such as "--"
std::string did_you_mean(std::string_view text,
                         const std::vector<std::string>& known,
                         const std::string& prefix = "");

}  // namespace ddp::detail
