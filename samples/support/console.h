#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace samples {

/// How far a pass over the data has come.
struct Progress {
  std::string title;  ///< "epoch 3/20"
  int64_t done;
  int64_t total;
  double loss;
};

/// One line for a terminal, at most `width` columns wide: title, bar, steps,
/// loss.
std::string render(const Progress& progress, int width);

/// Prints lines and, on a terminal, a bar below them.
///
/// Example:
/// @code
///   samples::Console console(std::cout, samples::stdout_width());
///   console.show({"epoch 1/20", 3, 23, 0.7});
///   console.line("epoch 1/20: test accuracy 95.21 %");
/// @endcode
class Console {
 public:
  /// @param width  columns of the terminal; 0: no terminal, lines alone.
  Console(std::ostream& out, int width);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints a whole line at once and flushes it.
  void line(const std::string& text);

  /// True when the bar is due to be drawn again: on a terminal, ten times a
  /// second.
  bool wants_progress() const;
  /// Draws the bar in place of the last one.
  void show(const Progress& progress);

 private:
  void clear();

  std::ostream& out_;
  int width_;
  bool has_bar_ = false;
  std::chrono::steady_clock::time_point next_{};
};

/// Columns of the terminal behind standard output, or 0 when it is none.
int stdout_width();

}  // namespace samples
