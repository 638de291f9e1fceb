#pragma once

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

namespace ddp {

namespace detail {

using Tensors = std::vector<at::Tensor>;

using Segment = std::function<Tensors(const Tensors&)>;

/// Implements `checkpoint_activations`.
/// @param module  the module that `segment` runs, or null.
Tensors checkpoint_segment(Segment segment,
                           const Tensors& inputs,
                           const torch::nn::Module* module);

/// Converts the result of a segment to a list of tensors and back.
template <typename Result>
struct SegmentResult {
  static_assert(std::is_base_of_v<at::Tensor, Result>,
                "a checkpointed function returns a tensor, a std::vector or a "
                "std::tuple of tensors");
  static Tensors list(Result result) { return {std::move(result)}; }
  static Result of(Tensors list) { return std::move(list[0]); }
};

template <>
struct SegmentResult<Tensors> {
  static Tensors list(Tensors result) { return result; }
  static Tensors of(Tensors list) { return list; }
};

template <typename... T>
struct SegmentResult<std::tuple<T...>> {
  static Tensors list(const std::tuple<T...>& result) {
    return std::apply([](const auto&... t) { return Tensors{t...}; }, result);
  }
  static std::tuple<T...> of(const Tensors& list) {
    return of(list, std::index_sequence_for<T...>());
  }
  template <size_t... I>
  static std::tuple<T...> of(const Tensors& list, std::index_sequence<I...>) {
    return {list[I]...};
  }
};

template <typename Function, size_t... I>
auto call_segment(Function& function,
                  const Tensors& inputs,
                  std::index_sequence<I...> /*places*/) {
  if constexpr (torch::detail::is_module_holder<Function>::value) {
    return function->forward(inputs[I]...);  // Sequential has no operator()
  } else {
    return function(inputs[I]...);
  }
}

template <typename Function>
const torch::nn::Module* module_of(const Function& function) {
  if constexpr (torch::detail::is_module_holder<Function>::value) {
    return function.get();
  } else {
    return nullptr;
  }
}

}  // namespace detail

/// Runs a part of a network without keeping its activations for the backward
/// pass, which computes them again. The part needs memory only for its inputs
/// instead of all intermediate results, at the cost of a second forward.
/// Corresponds to PyTorch's activation checkpointing.
///
/// While gradient recording is off, it only calls the function.
///
/// The gradients equal the gradients of `function(inputs...)`. Each parameter
/// gets its gradient once in a backward pass, summed over all its uses. A part
/// may therefore be called several times, share weights with others and contain
/// further checkpointed parts. This works under `DistributedDataParallel`
/// without any option, and in the replicas of a `dp::DataParallel`: call this
/// function inside the wrapped module's forward.
///
/// The second forward draws the same random numbers from the default generators
/// (dropout) and computes under the same autocast. For a GPU this needs an
/// input, or a parameter of a module holder, on that GPU. The second forward
/// does not change generators that the first forward did not draw from. On the
/// CPU, draws are detected if LibTorch's operators make them on the calling
/// thread; a custom operator that draws there needs the tag
/// `nondeterministic_seeded`. If `function` is a module holder, the module's
/// buffers have the same values after the second forward as before it; a batch
/// norm inside another function counts the batch twice. The second forward
/// reads the buffers as the first one has left them. If the output of a part
/// depends on buffers that the part changes, the gradients are therefore wrong.
///
/// A part that draws from the CPU's generator must be the only user of this
/// generator while it runs, in both forwards. If another thread draws
/// meanwhile, for example a data loader's, the backward pass throws; give that
/// thread a generator of its own. Replicas of a `dp::DataParallel` share the
/// generator, so this part throws there in the first forward. Only one backward
/// pass in a process at a time runs a part that draws: the part must not wait
/// for another thread's part, for example by a collective if ranks are threads.
///
/// Example:
/// @code
///   struct DeepImpl : torch::nn::Module {
///     DeepImpl() {
///       body = register_module(
///           "body",
///           torch::nn::Sequential(torch::nn::Linear(8, 8),
///                                 torch::nn::BatchNorm1d(8)));
///       head = register_module("head", torch::nn::Linear(8, 2));
///     }
///     torch::Tensor forward(torch::Tensor x) {
///       x = ddp::checkpoint_activations(body, x);
///       return ddp::checkpoint_activations(
///           [this](const torch::Tensor& y) { return head(y.relu()); }, x);
///     }
///     torch::nn::Sequential body{nullptr};
///     torch::nn::Linear head{nullptr};
///   };
/// @endcode
///
/// @param function  a module holder, or a copyable object that can be called
///   with the inputs. Returns a tensor, or a vector or tuple of tensors. It
///   lives as long as the graph, and objects that it refers to must live until
///   the backward pass. It must not depend on state that changes until then,
///   and must not change its inputs. Parameters and other tensors that it
///   refers to get their gradients like the inputs. Runs on the calling thread,
///   and the second time on the thread of the backward pass. If another thread
///   computes a part of its graph (a `dp::DataParallel` of several devices
///   inside), the backward pass throws.
/// @param inputs  tensors, may be undefined.
/// @throws c10::Error if the function changes an input in place or returns an
///   undefined tensor. The backward pass throws if the second forward returns
///   another number of outputs, or outputs of another dtype or shape, or if its
///   graph no longer leads to a parameter or tensor with history that the
///   function refers to; if an input or a parameter was changed in place in
///   between, as autograd's versions show (torch::optim::SGD does not raise
///   them: its step in between makes the gradients wrong); if another thread
///   has drawn from the CPU's generator (see above); and with create_graph. A
///   change of a tensor that the function refers to and that needs no gradient
///   (a mask) is not detected.
///
/// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
template <typename Function, typename... Inputs>
auto checkpoint_activations(Function function, const Inputs&... inputs) {
  static_assert((std::is_base_of_v<at::Tensor, Inputs> && ...),
                "the inputs of a checkpointed function are tensors; capture "
                "what is none");
  constexpr std::index_sequence_for<Inputs...> kPlaces{};
  using Result = std::decay_t<decltype(detail::call_segment(
      function, std::declval<const detail::Tensors&>(), kPlaces))>;
  using Results = detail::SegmentResult<Result>;
  const auto* module = detail::module_of(function);
  return Results::of(detail::checkpoint_segment(
      [function = std::move(function), kPlaces](const auto& list) mutable {
        return Results::list(detail::call_segment(function, list, kPlaces));
      },
      {inputs...},
      module));
}

}  // namespace ddp
