#include "ddp/reduce/detail/unused_parameters.h"

#include <algorithm>

#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>

#include "ddp/job/wait.h"
#include "ddp/tensors/streams.h"

namespace ddp::detail {
namespace {

constexpr const char* kWhat = "all-reduce of the used map";

}  // namespace

UsedMap::UsedMap(size_t parameters, c10::Device device)
    : mine_(at::ones({static_cast<int64_t>(parameters)},
                     at::TensorOptions(at::kFloat).device(device))),
      made_on_(current_stream(device)) {}

void UsedMap::exchange(c10d::Backend& group,
                       const std::vector<size_t>& without) {
  join_stream(made_on_);
  // On a GPU a new map stalls the host, so it is only made if it changes.
  if (without != without_) {
    auto map = at::ones({mine_.numel()}, at::kFloat);
    auto* element = map.mutable_data_ptr<float>();
    for (const size_t index : without) {
      element[index] = 0;
    }
    mine_.copy_(map);
    without_ = without;
  }
  sums_ = mine_.clone();
  record_stream(mine_);
  std::vector<at::Tensor> tensors{sums_};
  wait(group.allreduce(tensors), group, kWhat);
  record_stream(sums_);
}

std::vector<size_t> UsedMap::unused(const c10d::Backend& group) const {
  const auto used = copy_result(sums_.ne(0), c10::kCPU, group, kWhat);
  std::vector<size_t> unused;
  for (int64_t i = 0; i < used.numel(); ++i) {
    if (!used.const_data_ptr<bool>()[i]) {
      unused.push_back(static_cast<size_t>(i));
    }
  }
  return unused;
}

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
