#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace launcher {

/// What ended a line.
enum class LineEnd {
  newline,
  carriage_return,  ///< a progress bar's step; only where it is asked for
  cut,              ///< the stream's end, or the line was too long
};

/// Cuts a stream of bytes into whole lines, whatever pieces it arrives in.
/// Pure: no file descriptors.
class LineSplitter {
 public:
  using Consumer = std::function<void(std::string_view line, LineEnd end)>;

  enum class Returns { in_text, end_lines };

  /// @param returns whether a carriage return ends a line (for a terminal)
  /// @param longest bytes after which a line without an end is cut
  explicit LineSplitter(Returns returns = Returns::in_text,
                        size_t longest = 256 * 1024);

  /// Takes the next bytes; gives each line that they complete to `consume`,
  /// without its end.
  void feed(std::string_view bytes, const Consumer& consume);

  /// The stream has ended: gives what is left, if anything.
  void finish(const Consumer& consume);

 private:
  void end_line(std::string_view rest, LineEnd end, const Consumer& consume);
  void keep(std::string_view rest, const Consumer& consume);

  std::string_view ends_;  // the characters that end a line
  size_t longest_;
  std::string partial_;
  // partial_ was followed by a carriage return; the next byte tells whether it
  // belongs to a newline.
  bool returned_ = false;
};

}  // namespace launcher
