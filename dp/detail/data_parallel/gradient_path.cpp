#include "dp/detail/data_parallel/gradient_path.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/detail/autograd_nodes.h"
#include "dp/detail/data_parallel/gradient_nodes.h"
#include "dp/detail/data_parallel/groups.h"

namespace dp::detail {
namespace {

namespace ag = torch::autograd;

/// Slots whose gradients go together.
using Bucket = std::vector<size_t>;

/// At most as many share a node: the engine walks along a node's inputs for
/// each of them.
constexpr size_t kMostInBucket = 64;

/// A bucket on the CPU that has reached this is full, so that gradients are
/// added up while they are in the cache, and their memory serves the next ones.
constexpr int64_t kBytesInCache = 1 << 20;

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
    specs.push_back({slot.source.numel(), slot.dtype});
  }
  const auto cap = layout.device.is_cpu() ? kBytesInCache : kBytesSentTogether;
  std::vector<Bucket> buckets;
  for (const auto& group : group_by_size(std::move(specs), reverse, cap)) {
    for (size_t begin = 0; begin < group.size(); begin += kMostInBucket) {
      const size_t end = std::min(begin + kMostInBucket, group.size());
      buckets.emplace_back(group.begin() + static_cast<ptrdiff_t>(begin),
                           group.begin() + static_cast<ptrdiff_t>(end));
    }
  }
  return buckets;
}

/// Where the gradient of a parameter goes; nowhere when it needs none.
ag::Edge end_of(const at::Tensor& source) {
  return source.requires_grad() ? ag::impl::gradient_edge(source) : ag::Edge();
}

/// Of the module and the replicas, those that have streams.
std::vector<c10::Device> devices_of(const StateLayout& layout,
                                    const std::vector<Replica>& replicas) {
  std::vector<c10::Device> devices;
  const auto add = [&](c10::Device device) {
    if (!device.is_cpu()) {
      devices.push_back(device);
    }
  };
  add(layout.device);
  for (const auto& replica : replicas) {
    add(replica.spec.device);
  }
  return devices;
}

std::vector<c10::Stream> current_streams(
    const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const auto device : devices) {
    streams.push_back(
        c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

ddp::detail::NodePtrTo<ReduceBackward> make_reduce(
    const StateLayout& layout,
    const Bucket& bucket,
    const ag::edge_list& ends,
    const std::vector<Replica>& replicas,
    const TrafficCounters& traffic) {
  ag::edge_list edges;
  for (const size_t slot : bucket) {
    edges.push_back(ends[slot]);
  }
  std::vector<ReduceBackward::Sender> senders;
  for (const auto& replica : replicas) {
    senders.push_back({replica.index, replica.spec.is_remote});
  }
  auto reduce = ddp::detail::make_node<ReduceBackward>(
      std::move(edges), std::move(senders), traffic);
  for (const auto& replica : replicas) {
    for (const size_t slot : bucket) {
      // The device of the inputs is that of the node's stream.
      reduce->add_input_metadata(replica.spec.is_remote
                                     ? layout.slots[slot].source
                                     : replica.pieces[slot]);
    }
  }
  return reduce;
}

/// The edges at which the gradients of a replica leave it.
ag::edge_list exits_of(const Replica& replica,
                       const Bucket& bucket,
                       const ddp::detail::NodePtrTo<ReduceBackward>& reduce,
                       c10::Device target,
                       const TrafficCounters& traffic) {
  const size_t sender = replica.index - 1;
  ag::edge_list exits;
  for (size_t i = 0; i < bucket.size(); ++i) {
    exits.emplace_back(reduce,
                       static_cast<uint32_t>(sender * bucket.size() + i));
  }
  if (!replica.spec.is_remote) {
    return exits;
  }
  exits.emplace_back(
      reduce, reduce->add_input_metadata(ReduceBackward::sample_parcel()));
  const auto send = ddp::detail::make_node<SendBackward>(
      std::move(exits), replica.index, target, replica.lane, traffic);
  ag::edge_list result;
  for (const size_t slot : bucket) {
    result.emplace_back(send, send->add_input_metadata(replica.pieces[slot]));
  }
  return result;
}

/// Whether others than the replicas' tensors hold the node that it goes to.
bool is_in_graph(const at::Tensor& tensor, const std::vector<Replica>& all) {
  const auto& node = tensor.grad_fn();
  if (!node) {
    return false;
  }
  size_t own = 0;
  for (const auto& replica : all) {
    for (const auto& member : replica.members) {
      own += member.tensor.grad_fn() == node ? 1 : 0;
    }
  }
  return static_cast<size_t>(node.use_count()) > own;
}

}  // namespace

GradientPath::GradientPath(const StateLayout& layout,
                           const std::vector<Replica>& replicas,
                           const TrafficCounters& traffic)
    : starts_(replicas.size(), Edges(layout.slots.size())),
      devices_(devices_of(layout, replicas)),
      streams_(current_streams(devices_)) {
  for (const auto& slot : layout.slots) {
    ends_.push_back(end_of(slot.source));
  }
  for (const auto& bucket : trained_buckets(layout)) {
    const auto reduce = make_reduce(layout, bucket, ends_, replicas, traffic);
    for (size_t k = 0; k < replicas.size(); ++k) {
      const auto exits =
          exits_of(replicas[k], bucket, reduce, layout.device, traffic);
      for (size_t i = 0; i < bucket.size(); ++i) {
        starts_[k][bucket[i]] = exits[i];
      }
    }
  }
}

bool GradientPath::leads_to(const StateLayout& layout) const {
  for (size_t slot = 0; slot < ends_.size(); ++slot) {
    if (end_of(layout.slots[slot].source) != ends_[slot]) {
      return false;
    }
  }
  return current_streams(devices_) == streams_;
}

void GradientPath::connect(const Replica& replica,
                           const std::vector<Replica>& all) const {
  const auto& starts = starts_[replica.index - 1];
  for (const auto& member : replica.members) {
    const auto& start = starts[member.slot];
    if (start.is_valid() || !is_in_graph(member.tensor, all)) {
      ag::impl::set_gradient_edge(member.tensor, start);
    }
  }
}

}  // namespace dp::detail
