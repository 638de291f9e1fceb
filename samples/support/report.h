#pragma once

#include <optional>
#include <string>

#include "samples/support/console.h"
#include "samples/support/evaluate.h"
#include "samples/support/images.h"
#include "samples/support/schedule.h"
#include "samples/support/stopwatch.h"

namespace samples {

/// What a training program says, in one place: rank 0 prints it on standard
/// output, the others keep silent. Not collective.
class Report {
 public:
  Report();

  /// What is trained on what. `where` says who computes, and how much of a
  /// step: "2 ranks over gloo, 32 images a rank and step".
  void begin(const Dataset& dataset, const std::string& where);
  /// `scale` is that of a gradient scaler, if there is one.
  void step(const Place& place,
            double loss,
            std::optional<double> scale = std::nullopt);
  /// Draws the bar. Only when `wants_progress()`: a loss costs a wait for the
  /// device.
  void progress(const Place& place, double loss);
  bool wants_progress() const { return console_.wants_progress(); }
  void epoch(const Place& place,
             double loss,
             const Score& test,
             const Stopwatch& time);
  /// The last line: what the test images say. `workers` are those who trained:
  /// "2 ranks".
  void end(const Score& test,
           const std::string& workers,
           const Stopwatch& time);

  /// `epochs` that are complete and all `steps`, from the first on.
  void saved(const std::string& file, int64_t epochs, int64_t steps);
  void resumed(const std::string& file, int64_t epochs, int64_t steps);
  /// It was asked to, and has saved.
  void stopped(int64_t steps);
  void nothing_to_resume(const std::string& file);

 private:
  std::ostream silence_{nullptr};
  Console console_;
};

}  // namespace samples
