#include "samples/experiments/servers/update_log.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "samples/support/text.h"

namespace samples {
namespace {

constexpr double kBarWidth = 50;

std::string bar(double value, double most) {
  const double length = most > 0 ? value / most * kBarWidth : 0;
  return std::string(static_cast<size_t>(std::lround(length)), '#');
}

}  // namespace

std::string UpdateLog::loss_bars(int64_t rows) const {
  const auto count = static_cast<int64_t>(updates_.size());
  rows = std::min(rows, count);
  std::vector<double> means;
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t i = count * row / rows; i < count * (row + 1) / rows; ++i) {
      sum += updates_[static_cast<size_t>(i)].loss;
    }
    means.push_back(sum / static_cast<double>(count * (row + 1) / rows -
                                              count * row / rows));
  }
  std::string text;
  for (int64_t row = 0; row < rows; ++row) {
    const double mean = means[static_cast<size_t>(row)];
    text += format(
        "updates %5ld to %5ld: loss %.4f %s\n",
        count * row / rows + 1,
        count * (row + 1) / rows,
        mean,
        bar(mean, *std::max_element(means.begin(), means.end())).c_str());
  }
  return text;
}

void UpdateLog::write_csv(const std::string& file) const {
  std::ofstream out(file);
  out << "update,worker,staleness,loss\n";
  for (const auto& update : updates_) {
    out << format("%ld,%d,%ld,%.6g\n",
                  update.number,
                  update.worker,
                  update.staleness,
                  update.loss);
  }
  TORCH_CHECK(out.flush(), "Expected to write ", file, ", but could not.");
}

std::string staleness_bars(const std::vector<int64_t>& counts) {
  const int64_t most =
      counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  std::string text;
  for (size_t staleness = 0; staleness < counts.size(); ++staleness) {
    const int64_t count = counts[staleness];
    text += format(
        "staleness %3zu: %6ld %s\n",
        staleness,
        count,
        bar(static_cast<double>(count), static_cast<double>(most)).c_str());
  }
  return text;
}

}  // namespace samples
