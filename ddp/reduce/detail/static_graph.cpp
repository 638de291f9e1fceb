#include "ddp/reduce/detail/static_graph.h"

#include <algorithm>

namespace ddp::detail {

StaticGraph::StaticGraph(size_t parameters)
    : expected_(parameters), came_(parameters) {}

bool StaticGraph::add(size_t index) {
  ++came_[index];
  if (is_known_) {
    return came_[index] == expected_[index];
  }
  sequence_.push_back(index);
  return false;
}

std::vector<size_t> StaticGraph::learn() {
  std::vector<size_t> order;
  std::vector<int64_t> seen(came_.size());
  for (const size_t index : sequence_) {
    if (++seen[index] == came_[index]) {
      order.push_back(index);
    }
  }
  for (size_t i = 0; i < came_.size(); ++i) {
    if (came_[i] == 0) {
      unused_.push_back(i);
    }
  }
  expected_ = came_;
  is_known_ = true;
  sequence_ = {};
  return order;
}

std::vector<StaticGraph::Change> StaticGraph::changes() const {
  std::vector<Change> result;
  for (size_t i = 0; i < came_.size(); ++i) {
    if (came_[i] != expected_[i]) {
      result.push_back({i, expected_[i], came_[i]});
    }
  }
  return result;
}

void StaticGraph::reset() {
  std::fill(came_.begin(), came_.end(), 0);
  sequence_.clear();
}

}  // namespace ddp::detail
