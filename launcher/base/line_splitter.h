#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace launcher {

/// How a line ended.
enum class LineEnd {
  newline,
  carriage_return,  ///< step of a progress bar
  cut,              ///< end of the stream, or the line was too long
  none,             ///< the rest of the line is still to come
};

/// Splits a stream of bytes into lines, independent of the pieces in which it
/// arrives. Pure: uses no file descriptors.
class LineSplitter {
 public:
  using Consumer = std::function<void(std::string_view line, LineEnd end)>;

  /// @param longest number of bytes after which a line is cut
  explicit LineSplitter(size_t longest = 256 * 1024) : longest_(longest) {}

  /// Processes the next bytes. Passes each completed line to `consume`, without
  /// its line ending.
  void feed(std::string_view bytes, const Consumer& consume);

  /// Passes the rest of the stream to `consume`, if any.
  void finish(const Consumer& consume);

  /// Beginning of the line that has not ended yet.
  std::string_view unfinished() const { return partial_; }
  /// Returns whether that line comes after a step of a progress bar.
  bool is_in_progress_bar() const { return is_in_progress_bar_; }

 private:
  void end_line(std::string_view rest, LineEnd end, const Consumer& consume);
  void keep(std::string_view rest, const Consumer& consume);

  size_t longest_;
  std::string partial_;
  // A carriage return followed partial_; the next byte decides whether it
  // belongs to a newline.
  bool returned_ = false;
  bool is_in_progress_bar_ = false;
};

}  // namespace launcher
