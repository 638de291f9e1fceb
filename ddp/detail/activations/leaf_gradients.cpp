#include "ddp/detail/activations/leaf_gradients.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "ddp/detail/autograd_nodes.h"

namespace ddp::detail {
namespace {

using at::Tensor;
using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Tensors = std::vector<Tensor>;

/// Calls `visit(edge, accumulator)` for each edge of the graph that leads to
/// an accumulator, and `visit_node(node)` for each other node, once.
template <typename VisitLeaf, typename VisitNode>
void walk(const Tensors& outputs,
          const VisitLeaf& visit_leaf,
          const VisitNode& visit_node) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> pending;
  const auto meet = [&](Node* node) {
    if (seen.insert(node).second) {
      visit_node(*node);
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
      if (auto* leaf = dynamic_cast<AccumulateGrad*>(edge.function.get())) {
        visit_leaf(edge, leaf->variable);
      } else if (edge.is_valid()) {
        meet(edge.function.get());
      }
    }
  }
}

/// Stands in a graph where an accumulator was. The engine adds up what comes.
struct Sink : Node {
  variable_list apply(variable_list&& gradients) override {
    gradient = std::move(gradients[0]);
    return {};
  }
  Tensor gradient;
};

}  // namespace

Tensors leaves_of(const Tensors& outputs, uint64_t since) {
  Tensors leaves;
  std::unordered_set<const c10::TensorImpl*> known;
  walk(
      outputs,
      [&](const Edge&, const Tensor& leaf) {
        if (known.insert(leaf.unsafeGetTensorImpl()).second) {
          leaves.push_back(leaf);
        }
      },
      [since](const Node& node) {
        TORCH_CHECK(
            node.sequence_nr() >= since,
            "Expected a checkpointed function to compute of its inputs and of "
            "parameters alone, but it uses a tensor that ",
            node.name(),
            " has made outside of it; give it that as an input");
      });
  return leaves;
}

Tensors leaf_gradients(const Tensors& outputs,
                       const Tensors& gradients,
                       const Tensors& leaves) {
  std::vector<NodePtrTo<Sink>> sinks;
  std::unordered_map<const c10::TensorImpl*, NodePtr> sink_of;
  for (const auto& leaf : leaves) {
    sinks.push_back(make_node<Sink>());
    sinks.back()->add_input_metadata(leaf);
    sink_of.emplace(leaf.unsafeGetTensorImpl(), sinks.back());
  }
  walk(
      outputs,
      [&](Edge& edge, const Tensor& leaf) {
        const auto sink = sink_of.find(leaf.unsafeGetTensorImpl());
        edge = sink == sink_of.end() ? Edge() : Edge(sink->second, 0);
      },
      [](const Node&) {});
  torch::autograd::backward(outputs, gradients);
  Tensors result;
  for (const auto& sink : sinks) {
    result.push_back(std::move(sink->gradient));
  }
  return result;
}

}  // namespace ddp::detail
