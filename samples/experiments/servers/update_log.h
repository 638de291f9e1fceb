#pragma once

#include <dp/parameter_server.h>

#include <cstdint>
#include <string>
#include <vector>

namespace samples {

/// Log of a parameter server's updates, for a terminal and for scripts/plot.
class UpdateLog {
 public:
  void add(const dp::Update& update) { updates_.push_back(update); }

  /// Returns one line for each of `rows` equal parts of the training: its
  /// updates, their mean loss, a bar.
  std::string loss_bars(int64_t rows) const;

  /// Writes one line "update,worker,staleness,loss" per update.
  /// @throws c10::Error if the file cannot be written.
  void write_csv(const std::string& file) const;

 private:
  std::vector<dp::Update> updates_;
};

/// Returns one line for each staleness: the number of updates with it, and a
/// bar. `counts[k]` is the number of updates with a staleness of k.
std::string staleness_bars(const std::vector<int64_t>& counts);

}  // namespace samples
