#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// Returns the text on one line: control characters become \n, \t or \x1b. For
/// messages that quote foreign text.
std::string on_one_line(std::string_view text);

/// Shortens a text to about `most` bytes. Keeps the beginning and the end,
/// which often holds advice, and states between them how many bytes are left
/// out. Does not cut short words, and never cuts UTF-8 characters.
std::string shortened(std::string_view text, size_t most);

/// Returns a count with its noun: "1 worker", "8 workers".
std::string count_text(int64_t count, const std::string& what);

/// Formats a time-out: "60 s", or "500 ms" if it is not a whole number of
/// seconds.
std::string patience_text(std::chrono::milliseconds time);

/// Formats a measured time: "1.5 s".
std::string elapsed_text(std::chrono::milliseconds time);

/// Formats rows of equal length as lines with left-aligned columns.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace launcher
