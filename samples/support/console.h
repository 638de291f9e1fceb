#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace samples {

/// Progress of a pass over the data.
struct Progress {
  std::string title;  ///< for example "epoch 3/20"
  int64_t done;
  int64_t total;
  double loss;
};

/// Returns one line for a terminal, at most `width` columns wide: title, bar,
/// steps, loss.
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
  /// @param width  columns of the terminal; 0: no terminal, print lines only.
  Console(std::ostream& out, int width);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints a line with one write and flushes it.
  void line(const std::string& text);

  /// Returns true if the bar should be redrawn: on a terminal, ten times a
  /// second.
  bool wants_progress() const;
  /// Draws the bar over the previous one.
  void show(const Progress& progress);

 private:
  void clear();

  std::ostream& out_;
  int width_;
  bool has_bar_ = false;
  std::chrono::steady_clock::time_point next_{};
};

/// Returns the number of columns of the terminal on standard output, or 0 if it
/// is not a terminal.
int stdout_width();

}  // namespace samples
