#include "ddp/nn/checkpoint_activations.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include "ddp/nn/detail/replay_state.h"
#include "ddp/nn/detail/segment_graph.h"
#include "ddp/tensors/replica_scope.h"

namespace ddp::detail {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRecipe = "recipe";

/// Data for the second forward of a segment.
struct SegmentRecord : torch::CustomClassHolder {
  explicit SegmentRecord(const Tensors& near) : state(near) {}

  Segment segment;
  ReplayState state;
  Tensors buffers;
  size_t inputs = 0;
  std::vector<std::string> outputs;  // dtype and shape of each
};

std::string kind_of(const Tensor& tensor) {
  return c10::str(tensor.scalar_type(), tensor.sizes());
}

/// Detaches the tensors; the segment's graph begins here.
Tensors apart(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.detach().requires_grad_(tensor.requires_grad()));
  }
  return result;
}

std::vector<int64_t> versions_of(const Tensors& tensors) {
  std::vector<int64_t> versions;
  for (const auto& tensor : tensors) {
    versions.push_back(tensor.defined() ? tensor._version() : 0);
  }
  return versions;
}

void check_unchanged(const Tensors& inputs,
                     const std::vector<int64_t>& before) {
  const auto now = versions_of(inputs);
  const auto changed =
      std::mismatch(now.begin(), now.end(), before.begin()).first - now.begin();
  TORCH_CHECK(now == before,
              "Expected a checkpointed function to leave its inputs as they "
              "are, but it has changed input ",
              changed,
              " in place; let it change a copy");
}

/// Runs the segment. An output that the segment only passes on becomes a view,
/// so that it is a node of the segment's graph too.
Tensors run(const SegmentRecord& recipe,
            const Tensors& inputs,
            const GraphMoment& since) {
  auto outputs = recipe.segment(inputs);
  for (auto& output : outputs) {
    TORCH_CHECK(output.defined(),
                "Expected a checkpointed function to return tensors, but got "
                "an undefined one");
    if (output.requires_grad() &&
        (output.is_leaf() || !since.has(*output.grad_fn()))) {
      output = output.view_as(output);
    }
  }
  return outputs;
}

/// Runs the first forward. Replicas draw from the CPU's common generator in an
/// undefined order, so the recorded state does not determine the numbers that a
/// segment draws.
Tensors run_first(SegmentRecord& recipe,
                  const Tensors& inputs,
                  const GraphMoment& since) {
  auto outputs =
      recipe.state.run_first([&] { return run(recipe, inputs, since); });
  TORCH_CHECK(
      !ReplicaScope::is_entered() || !recipe.state.draws_on_cpu(),
      "Expected a checkpointed function in a replica of a DataParallel to draw "
      "no random numbers on the CPU, where all replicas share one generator "
      "and the backward pass could not draw the same again, but it has drawn "
      "some; draw them outside and give them as an input, draw on a GPU, or "
      "leave this part without checkpoint_activations");
  return outputs;
}

bool contains(const Tensors& ends, const Tensor& one) {
  return std::any_of(ends.begin(), ends.end(), [&one](const Tensor& end) {
    return are_same_end(end, one);
  });
}

/// A parameter that has been frozen since the first forward gets no gradient,
/// as without checkpointing.
void check_ends(const Tensors& now, const Tensors& before) {
  for (const auto& end : before) {
    TORCH_CHECK(!end.requires_grad() || contains(now, end),
                "Expected a checkpointed function to do the same in the "
                "backward pass, but it no longer uses a ",
                end.is_leaf() ? "parameter" : "tensor from outside",
                " of shape ",
                end.sizes(),
                "; let it depend on its inputs alone");
  }
}

/// Computes the outputs a second time and compares them with the first forward.
Tensors run_again(const SegmentRecord& recipe,
                  const Tensors& inputs,
                  const Tensors& ends,
                  const GraphMoment& since) {
  const at::AutoGradMode with_graph(true);
  const auto outputs =
      recipe.state.run_again([&] { return run(recipe, inputs, since); });
  TORCH_CHECK(outputs.size() == recipe.outputs.size(),
              "Expected a checkpointed function to return ",
              recipe.outputs.size(),
              " tensors in the backward pass, as before, but got ",
              outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    TORCH_CHECK(kind_of(outputs[i]) == recipe.outputs[i],
                "Expected a checkpointed function to do the same in the "
                "backward pass, but output ",
                i,
                " was ",
                recipe.outputs[i],
                " and is ",
                kind_of(outputs[i]),
                "; let it depend on its inputs alone");
  }
  check_ends(ends_of(outputs, since), ends);
  return outputs;
}

/// Restores the buffers' current values at scope exit. Bypasses their version
/// counters: the graph does not read its saved buffers again.
auto keep(const Tensors& buffers) {
  Tensors before;
  for (const auto& buffer : buffers) {
    before.push_back(buffer.clone());
  }
  return c10::make_scope_exit([&buffers, before = std::move(before)] {
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].data().copy_(before[i]);
    }
  });
}

/// The ends of the segment's graph are inputs too, so that the outer pass
/// accumulates the gradients of parameters.
struct RunAgain : torch::autograd::Function<RunAgain> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<SegmentRecord>& recipe,
                               const std::shared_ptr<const Tensors>& outputs,
                               at::TensorList inputs,
                               at::TensorList ends) {
    auto saved = inputs.vec();
    saved.insert(saved.end(), ends.begin(), ends.end());
    context->save_for_backward(std::move(saved));
    context->saved_data[kRecipe] = c10::IValue::make_capsule(recipe);
    context->set_materialize_grads(false);
    Tensors result;
    Tensors without_gradient;
    for (const auto& output : *outputs) {
      result.push_back(output.detach());
      if (!output.requires_grad()) {
        without_gradient.push_back(result.back());
      }
    }
    context->mark_non_differentiable(without_gradient);
    return result;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "Expected a backward pass without create_graph through "
                "checkpoint_activations, whose gradients have no graph of "
                "their own; call the function itself there");
    const auto capsule = context->saved_data[kRecipe].toCapsule();
    const auto& recipe = static_cast<const SegmentRecord&>(*capsule);
    const auto saved = context->get_saved_variables();
    const auto inputs = apart({saved.begin(), saved.begin() + recipe.inputs});
    const Tensors ends(saved.begin() + recipe.inputs, saved.end());
    auto wanted = inputs;
    wanted.insert(wanted.end(), ends.begin(), ends.end());

    const auto kept = keep(recipe.buffers);
    const GraphMoment since;
    const auto outputs = run_again(recipe, inputs, ends, since);
    Tensors roots;
    Tensors slopes;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (gradients[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        slopes.push_back(gradients[i]);
      }
    }
    auto result = gradients_at_ends(roots, slopes, since, wanted);
    result.insert(result.begin(), 2, Tensor());  // recipe and outputs
    return result;
  }
};

}  // namespace

Tensors checkpoint_segment(Segment segment,
                           const Tensors& inputs,
                           const torch::nn::Module* module) {
  if (!c10::GradMode::is_enabled()) {
    return segment(inputs);
  }
  std::vector<size_t> places;  // indices of the defined inputs
  Tensors given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) {
      places.push_back(i);
      given.push_back(inputs[i]);
    }
  }
  auto near = given;
  if (module != nullptr) {
    const auto parameters = module->parameters();
    near.insert(near.end(), parameters.begin(), parameters.end());
  }
  const auto recipe = c10::make_intrusive<SegmentRecord>(near);
  recipe->segment = [segment = std::move(segment),
                     count = inputs.size(),
                     places](const Tensors& defined) {
    Tensors all(count);
    for (size_t i = 0; i < places.size(); ++i) {
      all[places[i]] = defined[i];
    }
    return segment(all);
  };
  recipe->inputs = given.size();
  if (module != nullptr) {
    recipe->buffers = module->buffers();
  }

  // Computed with a graph, to find the tensors in use; the graph is then
  // dropped.
  const GraphMoment since;
  const auto versions = versions_of(inputs);
  const auto own = apart(given);
  const auto outputs =
      std::make_shared<const Tensors>(run_first(*recipe, own, since));
  check_unchanged(inputs, versions);
  for (const auto& output : *outputs) {
    recipe->outputs.push_back(kind_of(output));
  }
  auto ends = ends_of(*outputs, since);
  ends.erase(
      std::remove_if(ends.begin(),
                     ends.end(),
                     [&own](const Tensor& end) { return contains(own, end); }),
      ends.end());
  return RunAgain::apply(
      recipe, outputs, at::TensorList(given), at::TensorList(ends));
}

}  // namespace ddp::detail
