#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace launcher {

/// How a line ended.
enum class LineEnd {
  newline,
  carriage_return,  ///< step of a progress bar; only with Returns::end_lines
  cut,              ///< end of the stream, or the line was too long
};

/// Splits a stream of bytes into lines, independent of the pieces in which it
/// arrives. Pure: uses no file descriptors.
class LineSplitter {
 public:
  using Consumer = std::function<void(std::string_view line, LineEnd end)>;

  enum class Returns { in_text, end_lines };

  /// @param returns whether a carriage return ends a line (for a terminal)
  /// @param longest number of bytes after which a line is cut
  explicit LineSplitter(Returns returns = Returns::in_text,
                        size_t longest = 256 * 1024);

  /// Processes the next bytes. Passes each completed line to `consume`, without
  /// its line ending.
  void feed(std::string_view bytes, const Consumer& consume);

  /// Passes the rest of the stream to `consume`, if any.
  void finish(const Consumer& consume);

 private:
  void end_line(std::string_view rest, LineEnd end, const Consumer& consume);
  void keep(std::string_view rest, const Consumer& consume);

  std::string_view ends_;  // characters that end a line
  size_t longest_;
  std::string partial_;
  // A carriage return followed partial_; the next byte decides whether it
  // belongs to a newline.
  bool returned_ = false;
};

}  // namespace launcher
