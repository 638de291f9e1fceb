#pragma once

#include <optional>
#include <string>

#include "samples/support/console.h"
#include "samples/support/evaluate.h"
#include "samples/support/images.h"
#include "samples/support/schedule.h"
#include "samples/support/stopwatch.h"

namespace samples {

/// Progress reports of a training program. Rank 0 prints them on standard
/// output; the other ranks print nothing. Not collective.
class Report {
 public:
  Report();

  /// Prints the data set and `where`, which describes the devices and a step:
  /// "2 ranks over gloo, 32 images a rank and step".
  void begin(const Dataset& dataset, const std::string& where);
  /// `scale` is the factor of a gradient scaler, if there is one.
  void step(const Place& place,
            double loss,
            std::optional<double> scale = std::nullopt);
  /// Draws the bar. Call only if `wants_progress()` returns true, because
  /// reading the loss synchronises with the device.
  void progress(const Place& place, double loss);
  bool wants_progress() const { return console_.wants_progress(); }
  void epoch(const Place& place,
             double loss,
             const Score& test,
             const Stopwatch& time);
  /// Prints the last line: the test score. `workers` names the devices or ranks
  /// that trained, for example "2 ranks".
  void end(const Score& test,
           const std::string& workers,
           const Stopwatch& time);

  /// Prints that a checkpoint was saved, after `epochs` complete epochs and
  /// `steps` steps since the start of the training.
  void saved(const std::string& file, int64_t epochs, int64_t steps);
  void resumed(const std::string& file, int64_t epochs, int64_t steps);
  /// Prints that the training stopped on request, after saving a checkpoint.
  void stopped(int64_t steps);
  void nothing_to_resume(const std::string& file);

 private:
  std::ostream silence_{nullptr};
  Console console_;
};

}  // namespace samples
