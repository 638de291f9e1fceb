#pragma once

#include <dp/parameter_server.h>

#include <cstdint>
#include <string>
#include <vector>

namespace samples {

/// The updates that a parameter server made: for a terminal, and for
/// scripts/plot.
class UpdateLog {
 public:
  void add(const dp::Update& update) { updates_.push_back(update); }

  /// A line for each of `rows` equal parts of the training: its updates, the
  /// mean of their losses, a bar.
  std::string loss_bars(int64_t rows) const;

  /// Writes a line "update,worker,staleness,loss" for each.
  /// @throws c10::Error when the file cannot be written.
  void write_csv(const std::string& file) const;

 private:
  std::vector<dp::Update> updates_;
};

/// A line for each staleness: how many updates had it, a bar. `counts[k]` is
/// the number of those that were k updates stale.
std::string staleness_bars(const std::vector<int64_t>& counts);

}  // namespace samples
