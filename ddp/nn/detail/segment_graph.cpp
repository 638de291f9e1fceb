#include "ddp/nn/detail/segment_graph.h"

#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/tensors/autograd_nodes.h"

namespace ddp::detail {
namespace {

using at::Tensor;
using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Tensors = std::vector<Tensor>;

/// Identifies an end: a leaf, or an input of a node.
using Place = std::pair<const void*, uint32_t>;

Place place_of(const Tensor& end) {
  if (end.is_leaf()) {
    return {end.unsafeGetTensorImpl(), 0};
  }
  return {end.grad_fn().get(), static_cast<uint32_t>(end.output_nr())};
}

/// Returns the leaf that the edge leads to; null if it leads to another node.
const Tensor* leaf_at(const Edge& edge) {
  const auto* node = dynamic_cast<AccumulateGrad*>(edge.function.get());
  return node == nullptr ? nullptr : &node->variable;
}

Place place_of(const Edge& edge) {
  if (const auto* leaf = leaf_at(edge)) {
    return {leaf->unsafeGetTensorImpl(), 0};
  }
  return {edge.function.get(), edge.input_nr};
}

/// Calls `visit(edge)` for each edge that leads out of the graph.
template <typename Visit>
void walk(const Tensors& outputs,
          const GraphMoment& since,
          const Visit& visit) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> pending;
  const auto meet = [&](Node* node) {
    if (seen.insert(node).second) {
      pending.push_back(node);
    }
  };
  for (const auto& output : outputs) {
    if (output.grad_fn()) {
      meet(output.grad_fn().get());
    }
  }
  while (!pending.empty()) {
    Node* node = pending.back();
    pending.pop_back();
    for (Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) {
        continue;
      }
      if (since.has(*edge.function)) {
        meet(edge.function.get());
      } else {
        visit(edge);
      }
    }
  }
}

Tensor end_at(const Edge& edge) {
  if (const auto* leaf = leaf_at(edge)) {
    return *leaf;
  }
  const auto& like = edge.function->input_metadata(edge.input_nr);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(like.shape_as_dim_vector());
  auto stand_in = at::empty_strided(
      sizes, std::vector<int64_t>(sizes.size(), 0), like.options());
  torch::autograd::impl::set_gradient_edge(stand_in, edge);
  return stand_in;
}

/// Replaces an end in the graph. The engine sums the gradients that reach it.
struct Sink : Node {
  variable_list apply(variable_list&& gradients) override {
    gradient = std::move(gradients[0]);
    return {};
  }
  Tensor gradient;
};

}  // namespace

GraphMoment::GraphMoment()
    : thread_(at::RecordFunction::currentThreadId()),
      sequence_(at::sequence_number::peek()) {}

/// The largest sequence number is assigned explicitly, to nodes that must run
/// first.
bool GraphMoment::has(const Node& node) const {
  constexpr auto kGiven = std::numeric_limits<uint64_t>::max();
  return node.thread_id() == thread_ && node.sequence_nr() >= sequence_ &&
         node.sequence_nr() != kGiven;
}

Tensors ends_of(const Tensors& outputs, const GraphMoment& since) {
  std::map<Place, Tensor> known;
  Tensors ends;
  walk(outputs, since, [&](const Edge& edge) {
    auto& end = known[place_of(edge)];
    if (!end.defined()) {
      end = end_at(edge);
      ends.push_back(end);
    }
  });
  return ends;
}

bool are_same_end(const Tensor& a, const Tensor& b) {
  return place_of(a) == place_of(b);
}

Tensors gradients_at_ends(const Tensors& outputs,
                          const Tensors& gradients,
                          const GraphMoment& since,
                          const Tensors& ends) {
  std::vector<NodePtrTo<Sink>> sinks;
  std::map<Place, NodePtr> sink_at;
  for (const auto& end : ends) {
    sinks.push_back(make_node<Sink>());
    sinks.back()->add_input_metadata(end);
    sink_at.emplace(place_of(end), sinks.back());
  }
  walk(outputs, since, [&](Edge& edge) {
    const auto sink = sink_at.find(place_of(edge));
    edge = sink == sink_at.end() ? Edge() : Edge(sink->second, 0);
  });
  torch::autograd::backward(outputs, gradients);
  Tensors result;
  for (const auto& sink : sinks) {
    result.push_back(std::move(sink->gradient));
  }
  return result;
}

}  // namespace ddp::detail
