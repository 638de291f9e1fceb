#include "ddp/reduce/detail/graph_changes.h"

#include <sstream>

namespace ddp::detail {

std::string changes_of(const GraphRecord& graph,
                       const GradientBuckets& buckets) {
  std::ostringstream text;
  const auto say = [&text](const std::string& name) -> std::ostringstream& {
    text << (text.tellp() > 0 ? ", " : "") << name;
    return text;
  };
  for (const auto& [index, expected, came] : graph.changes()) {
    const auto& parameter = buckets.parameter(index);
    if (parameter.tensor.requires_grad()) {
      say(parameter.name) << " (" << came << " times instead of " << expected
                          << ")";
    }
  }
  for (const size_t index : graph.unused()) {
    if (buckets.has_accumulated(index)) {
      say(buckets.parameter(index).name) << " (in a pass that was not reduced)";
    }
  }
  return text.str();
}

}  // namespace ddp::detail
