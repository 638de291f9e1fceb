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

// The steps of `DataParallel` as separate functions, for a forward with custom
// code between the steps. torch.nn.parallel has the same four functions. Every
// call creates its replicas and threads anew; in a loop `DataParallel` is
// faster, because it keeps them. All functions run on the calling thread,
// except for the forwards of `parallel_apply`.
namespace dp {

namespace detail {

/// Returns the chunks of the tensors, one list per part; see `dp::scatter`.
std::vector<std::vector<torch::Tensor>> scatter_tensors(
    const std::vector<torch::Tensor>& tensors,
    const std::vector<torch::Device>& devices,
    int64_t dim);

/// Gathers the parts' tensors on `target`. Returns one tensor per position.
std::vector<torch::Tensor> gather_tensors(const std::vector<PartResult>& parts,
                                          torch::Device target,
                                          int64_t dim);

/// Returns one module for each device; see `dp::replicate`.
std::vector<std::shared_ptr<torch::nn::Module>> replicate_module(
    const std::shared_ptr<torch::nn::Module>& module,
    const std::vector<torch::Device>& devices);

/// Runs `job(i)` for each device concurrently.
void run_on(const std::vector<torch::Device>& devices,
            const std::function<void(size_t part)>& job);

/// Returns the device of the first defined tensor, or the CPU if there is none.
torch::Device device_of(const std::vector<torch::Tensor>& tensors);

/// @throws c10::Error if the numbers do not match; 0 devices are valid.
void check_parts(size_t modules, size_t inputs, size_t devices);

template <typename T>
struct IsTuple : std::false_type {};
template <typename... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};

/// Calls `module.forward`. A tuple is unpacked into several arguments; any
/// other value is the only argument.
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
/// devices. Returns a copy of `inputs` for each device that receives rows.
/// `DataParallel` documents the supported containers and the values that are
/// not split. A chunk on the device of its tensor shares the tensor's memory.
/// Differentiable.
///
/// @param dim  negative values count from the end.
/// @returns the parts, that of the first device first, with the chunk sizes of
///   torch::chunk. There are fewer parts than devices if there are fewer rows,
///   and in some other cases (5 rows for 4 devices become parts of 2, 2 and 1
///   rows), and one part, on the first device, if there is no tensor or no row.
///   An undefined tensor stays undefined in each part.
/// @throws c10::Error if tensors differ in their number of rows or have no
///   dimension `dim`, if there is no device, if a device does not exist or is
///   named twice (except the CPU), for a PackedSequence, or if `tensor_fields`
///   of a struct returns copies.
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

/// Gathers the results of the parts of a batch on `target`. Every tensor is
/// concatenated along `dim`; scalars become a vector. All other values are
/// taken from the first part, but sizes of vectors, keys of maps and the
/// presence of optionals must be the same in all parts, also where they hold no
/// tensor. A single part that is already on `target` is returned without a
/// copy. `DataParallel` documents the supported
/// containers. Differentiable.
///
/// @throws c10::Error if there is no part, if the parts have different
///   structures, if tensors have no dimension `dim`, if sizes differ in a
///   dimension other than `dim`, if `target` does not exist, for a
///   PackedSequence, or if `tensor_fields` of a struct returns copies.
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

/// Returns one module for each device. The first is the module itself, which
/// must be on the first device; the others are clones. A backward pass through
/// the clones adds their gradients to the module's gradients. The clones have
/// the values at the time of the call: replicate again after each optimizer
/// step. The module must have a `clone()`.
///
/// In torch.nn.parallel the first replica is a copy that shares the module's
/// buffers. Here it is the module itself, so no change to it is lost.
///
/// @throws c10::Error if there is no device, if a device does not exist or is
///   named twice (except the CPU), if the module is null, cannot be cloned or
///   is on another device.
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

/// Same as above, for a module holder.
template <typename M>
std::vector<torch::nn::ModuleHolder<M>> replicate(
    const torch::nn::ModuleHolder<M>& module,
    const std::vector<torch::Device>& devices) {
  const auto replicas = replicate(module.ptr(), devices);
  return {replicas.begin(), replicas.end()};
}

/// Calls the forward of each module with its input, concurrently. Each forward
/// runs on its own thread with the caller's grad mode, autocast state and
/// streams, and with the module's device as the current device. An input that
/// is a tuple is unpacked into several arguments.
///
/// @param modules  holders or pointers. They may refer to the same module if
///   its forward may run twice concurrently.
/// @param devices  at least one for each module. Empty: for each input the
///   device of its first defined tensor, or the CPU if there is none.
/// @returns the result of each module, on the device on which it was computed.
/// @throws c10::Error if the numbers of modules, inputs and devices do not
///   match, or for a PackedSequence without `devices`. If a forward throws, the
///   other forwards finish first. Then the exception of the first failed module
///   is thrown as a c10::Error with, for example, "(replica 1 of 2 on cuda:1)"
///   added; an exception of another type is nested in it
///   (std::nested_exception).
///
/// Example, a forward with all four functions:
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
