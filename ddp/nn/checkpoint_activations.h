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

/// See `checkpoint_activations`. @param module  that `segment` runs, or null.
Tensors checkpoint_segment(Segment segment,
                           const Tensors& inputs,
                           const torch::nn::Module* module);

/// What a segment may return, as a list.
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

/// Runs a part of a network so that its activations are not kept for the
/// backward pass, which computes them once more: memory for the inputs of the
/// part instead of for all it computes, for a second forward. What PyTorch
/// calls activation checkpointing.
///
/// Gradients are those of `function(inputs...)`. Each parameter's comes once in
/// a backward pass, summed over all its uses, so a part may be called several
/// times, share weights with others and contain further checkpointed parts,
/// under `DistributedDataParallel`, too, where it needs no option, and in the
/// replicas of a `dp::DataParallel`: call this inside the wrapped module's
/// forward.
///
/// The second forward draws the same random numbers from the default generators
/// (dropout) and computes in the same autocast. Generators that the first one
/// did not draw from are left alone. On the CPU those draws count that
/// LibTorch's operators make on the calling thread; an operator of your own
/// that draws there is to have the tag `nondeterministic_seeded`. Of a module
/// that is given as such it leaves the buffers as they are; in a function's
/// batch norm it counts the batch twice.
///
/// A part that draws from the CPU's generator has to be the only one that draws
/// there while it runs, both times. Where another thread does, such as a data
/// loader's, the backward pass throws; give that thread a generator of its own.
/// Replicas of a `dp::DataParallel` share the generator, so there such a part
/// is an error at once. Of all backward passes in a process one at a time runs
/// such a part: it must not wait for another thread's part, as a collective in
/// it would where ranks are threads.
///
/// Example:
/// @code
///   struct DeepImpl : torch::nn::Module {
///     torch::Tensor forward(torch::Tensor x) {
///       for (auto& block : blocks) {
///         x = ddp::checkpoint_activations(block, x);
///       }
///       return ddp::checkpoint_activations(
///           [this](const torch::Tensor& y) { return head(norm(y)); }, x);
///     }
///     std::vector<torch::nn::Sequential> blocks;
///     torch::nn::BatchNorm1d norm{8};
///     torch::nn::Linear head{8, 2};
///   };
/// @endcode
///
/// @param function  a module holder, or what can be called with the inputs and
///   copied. It returns a tensor, or a vector or tuple of such, and lives until
///   the graph goes: what it refers to has to live until the backward pass. It
///   is to depend on nothing that changes until then, and to leave its inputs
///   as they are. Parameters and other tensors that it refers to get their
///   gradients as its inputs do; but where one that has a history changes in
///   between, only an input is told. Runs on the calling thread, and the second
///   time on the one of the backward pass.
/// @param inputs  tensors, also undefined ones.
/// @throws c10::Error when the function changes an input in place. The backward
///   pass throws when the second forward has other outputs or no longer uses
///   what the first has used, when an input or a parameter has changed in
///   between, when another thread has drawn from the CPU's generator as said
///   above, and where it is to be differentiated itself (create_graph).
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
