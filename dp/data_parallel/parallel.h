#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "dp/data_parallel/detail/leaves.h"

// The parts of `DataParallel` by themselves, for a forward that does something
// else between them; torch.nn.parallel has the same four. Each call begins
// anew: in a loop `DataParallel` is faster, since it keeps its replicas and
// their threads.
namespace dp {

namespace detail {

/// The chunks of the tensors by part; see `dp::scatter`.
std::vector<std::vector<torch::Tensor>> scatter_tensors(
    const std::vector<torch::Tensor>& tensors,
    const std::vector<torch::Device>& devices,
    int64_t dim);

/// What comes of the parts' tensors, by place.
std::vector<torch::Tensor> gather_tensors(const std::vector<PartResult>& parts,
                                          torch::Device target,
                                          int64_t dim);

std::vector<std::shared_ptr<torch::nn::Module>> replicate_module(
    const std::shared_ptr<torch::nn::Module>& module,
    const std::vector<torch::Device>& devices);

/// Runs `job(i)` for each device, all at once.
void run_on(const std::vector<torch::Device>& devices,
            const std::function<void(size_t part)>& job);

/// Of the first tensor in a part's arguments; the CPU where there is none.
torch::Device device_of(const std::vector<torch::Tensor>& tensors);

void check_parts(size_t modules, size_t inputs, size_t devices);

template <typename T>
struct IsTuple : std::false_type {};
template <typename... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};

/// A tuple is the arguments, anything else the one argument.
template <typename Module, typename Input>
auto forward_with(Module& module, const Input& input) {
  if constexpr (IsTuple<Input>::value) {
    return std::apply(
        [&](const auto&... arguments) { return module.forward(arguments...); },
        input);
  } else {
    return module.forward(input);
  }
}

}  // namespace detail

/// Splits every tensor in `inputs` along `dim` and moves the chunks to the
/// devices: a copy of `inputs` for each device that gets rows. What holds a
/// tensor and what is not split is said at `DataParallel`. Differentiable.
///
/// @returns fewer than there are devices where there are fewer rows, one where
///   there is no tensor. The first device's is the first.
/// @throws c10::Error when tensors differ in their rows or have no `dim`.
///
/// Example:
/// @code
///   const std::vector<torch::Device> devices(2, torch::kCPU);
///   auto parts = dp::scatter(std::tuple(images, labels), devices);
/// @endcode
///
/// Source: torch.nn.parallel.scatter.
template <typename T>
std::vector<T> scatter(const T& inputs,
                       const std::vector<torch::Device>& devices,
                       int64_t dim = 0) {
  const auto chunks =
      detail::scatter_tensors(detail::leaves(inputs), devices, dim);
  std::vector<T> parts(chunks.size(), inputs);
  for (size_t i = 0; i < parts.size(); ++i) {
    detail::replace_leaves(parts[i], chunks[i]);
  }
  return parts;
}

/// Puts together on `target` what parts of a batch gave: every tensor in them
/// along `dim`, scalars as a vector; other values are the first part's.
/// Differentiable.
///
/// @throws c10::Error when there is no part, when parts are not alike, and when
///   sizes other than that of `dim` differ.
///
/// Source: torch.nn.parallel.gather.
template <typename T>
T gather(std::vector<T> parts, torch::Device target, int64_t dim = 0) {
  TORCH_CHECK(!parts.empty(),
              "Expected the results of at least one part to gather, but got "
              "none");
  std::vector<detail::PartResult> results;
  for (const auto& part : parts) {
    results.push_back(detail::result_of(part));
  }
  detail::replace_leaves(parts.front(),
                         detail::gather_tensors(results, target, dim));
  return std::move(parts.front());
}

/// One module for each device: the module itself for the first, on which it
/// must lie, clones for the others. A backward pass through them adds their
/// gradients to the module's. Their values are those of now, so make them anew
/// after a step of the optimizer. The module must have a `clone()`.
///
/// In torch.nn.parallel the first is a copy, too, whose buffers are the
/// module's; here nothing of it is lost.
///
/// @throws c10::Error when a device is not there or named twice (but the CPU),
///   or when the module cannot be cloned or lies elsewhere.
///
/// Source: torch.nn.parallel.replicate.
template <typename M>
std::vector<std::shared_ptr<M>> replicate(
    const std::shared_ptr<M>& module,
    const std::vector<torch::Device>& devices) {
  TORCH_CHECK(module != nullptr,
              "Expected a module to replicate, but got an empty holder");
  std::vector<std::shared_ptr<M>> replicas;
  for (const auto& replica : detail::replicate_module(module, devices)) {
    replicas.push_back(std::dynamic_pointer_cast<M>(replica));
  }
  return replicas;
}

/// The same of a holder.
template <typename M>
std::vector<torch::nn::ModuleHolder<M>> replicate(
    const torch::nn::ModuleHolder<M>& module,
    const std::vector<torch::Device>& devices) {
  const auto replicas = replicate(module.ptr(), devices);
  return {replicas.begin(), replicas.end()};
}

/// Calls each module's forward with its input, all at once, each on a thread
/// with the caller's grad mode, autocast and streams, and its device as the
/// current one. An input that is a tuple is several arguments.
///
/// @param modules  holders or pointers; they may be one and the same, where its
///   forward may run twice at once.
/// @param devices  one for each module, or more; none: those of the inputs.
/// @returns what each has returned, where it lies.
/// @throws c10::Error when the numbers do not fit. An error in a forward waits
///   for the others and is then thrown on, that of the first module.
///
/// Example, a forward of all four:
/// @code
///   std::vector<torch::Device> devices(2, torch::kCPU);
///   auto parts = dp::scatter(images, devices);
///   devices.resize(parts.size(), torch::kCPU);  // fewer rows than devices
///   auto outputs = dp::parallel_apply(dp::replicate(net, devices), parts);
///   auto scores = dp::gather(outputs, devices[0]);
/// @endcode
///
/// Source: torch.nn.parallel.parallel_apply.
template <typename Module, typename Input>
auto parallel_apply(const std::vector<Module>& modules,
                    const std::vector<Input>& inputs,
                    std::vector<torch::Device> devices = {}) {
  using Result = std::decay_t<decltype(detail::forward_with(
      *std::declval<Module&>(), inputs.front()))>;
  detail::check_parts(modules.size(), inputs.size(), devices.size());
  if (devices.empty()) {
    for (const auto& input : inputs) {
      devices.push_back(detail::device_of(detail::leaves(input)));
    }
  }
  devices.erase(devices.begin() + static_cast<int64_t>(modules.size()),
                devices.end());
  std::vector<std::optional<Result>> results(modules.size());
  detail::run_on(devices, [&](size_t part) {
    auto module = modules[part];  // operator-> of a const holder gives a const
    results[part].emplace(detail::forward_with(*module, inputs[part]));
  });
  std::vector<Result> all;
  for (auto& result : results) {
    all.push_back(std::move(*result));
  }
  return all;
}

}  // namespace dp
