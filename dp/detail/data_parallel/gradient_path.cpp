#include "dp/detail/data_parallel/gradient_path.h"

#include <algorithm>

#include <torch/csrc/autograd/variable.h>

#include "ddp/detail/autograd_nodes.h"
#include "ddp/detail/reducer/bucket_plan.h"
#include "dp/detail/data_parallel/gradient_nodes.h"

namespace dp::detail {
namespace {

namespace ag = torch::autograd;

/// Slots whose gradients go together.
using Bucket = std::vector<size_t>;

/// At most as many share a node: the engine walks along a node's inputs for
/// each of them.
constexpr size_t kMostInBucket = 64;

/// A bucket that has reached this is full, so that gradients are added up while
/// they are in the cache, and their memory serves the next ones.
constexpr int64_t kBucketBytes = 1 << 20;

/// Slots whose tensors need a gradient, in the order in which those are
/// expected.
std::vector<Bucket> trained_buckets(const StateLayout& layout) {
  std::vector<ddp::detail::GradientSpec> specs;
  std::vector<size_t> reverse;
  for (size_t i = layout.slots.size(); i-- > 0;) {
    if (layout.slots[i].source.requires_grad()) {
      reverse.push_back(i);
    }
  }
  for (const auto& slot : layout.slots) {
    specs.push_back({slot.source.numel(), slot.dtype, slot.source.device()});
  }
  std::vector<Bucket> buckets;
  for (const auto& planned : ddp::detail::plan_buckets(
           specs, reverse, {kBucketBytes, kBucketBytes})) {
    for (size_t begin = 0; begin < planned.size(); begin += kMostInBucket) {
      const size_t end = std::min(begin + kMostInBucket, planned.size());
      buckets.emplace_back(planned.begin() + static_cast<ptrdiff_t>(begin),
                           planned.begin() + static_cast<ptrdiff_t>(end));
    }
  }
  return buckets;
}

ddp::detail::NodePtrTo<ReduceBackward> make_reduce(
    const StateLayout& layout,
    const Bucket& bucket,
    const std::vector<Replica*>& replicas,
    const TrafficCounters& traffic) {
  ag::edge_list edges;
  for (const size_t slot : bucket) {
    edges.push_back(ag::impl::gradient_edge(layout.slots[slot].source));
  }
  std::vector<ReduceBackward::Sender> senders;
  for (const auto* replica : replicas) {
    senders.push_back({replica->index, replica->spec.is_remote});
  }
  auto reduce = ddp::detail::make_node<ReduceBackward>(
      std::move(edges), std::move(senders), traffic);
  for (const auto* replica : replicas) {
    for (const size_t slot : bucket) {
      // The device of the inputs is that of the node's stream.
      reduce->add_input_metadata(replica->spec.is_remote
                                     ? layout.slots[slot].source
                                     : replica->pieces[slot]);
    }
  }
  return reduce;
}

/// The edges at which the gradients of a replica leave it.
ag::edge_list exits_of(const Replica& replica,
                       const Bucket& bucket,
                       const ddp::detail::NodePtrTo<ReduceBackward>& reduce,
                       size_t sender,
                       c10::Device device,
                       const TrafficCounters& traffic) {
  ag::edge_list exits;
  for (size_t i = 0; i < bucket.size(); ++i) {
    exits.emplace_back(reduce,
                       static_cast<uint32_t>(sender * bucket.size() + i));
  }
  if (!replica.spec.is_remote) {
    return exits;
  }
  const auto send = ddp::detail::make_node<SendBackward>(
      std::move(exits), replica.index, device, traffic);
  ag::edge_list result;
  for (const size_t slot : bucket) {
    result.emplace_back(send, send->add_input_metadata(replica.pieces[slot]));
  }
  return result;
}

}  // namespace

void connect_gradients(const StateLayout& layout,
                       const std::vector<Replica*>& replicas,
                       const TrafficCounters& traffic) {
  if (replicas.empty()) {
    return;
  }
  // By replica and slot; none where no gradient is needed.
  std::vector<std::vector<ag::Edge>> exit_of(
      replicas.size(), std::vector<ag::Edge>(layout.slots.size()));
  for (const auto& bucket : trained_buckets(layout)) {
    const auto reduce = make_reduce(layout, bucket, replicas, traffic);
    const auto device = layout.slots[bucket.front()].source.device();
    for (size_t k = 0; k < replicas.size(); ++k) {
      const auto exits =
          exits_of(*replicas[k], bucket, reduce, k, device, traffic);
      for (size_t i = 0; i < bucket.size(); ++i) {
        exit_of[k][bucket[i]] = exits[i];
      }
    }
  }
  for (size_t k = 0; k < replicas.size(); ++k) {
    for (const auto& member : replicas[k]->members) {
      ag::impl::set_gradient_edge(member.tensor, exit_of[k][member.slot]);
    }
  }
}

}  // namespace dp::detail
