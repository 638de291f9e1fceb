#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "dp/data_parallel/detail/tensor_walk.h"

namespace dp::detail {

/// Returns the tensors in `value`, in the order of `for_each_tensor`.
/// @throws c10::Error for a PackedSequence.
template <typename T>
std::vector<at::Tensor> leaves(const T& value) {
  std::vector<at::Tensor> found;
  for_each_tensor(value,
                  [&](const at::Tensor& tensor) { found.push_back(tensor); });
  return found;
}

/// Replaces the tensors in `value`, in the order of `leaves`, by `tensors`.
/// @throws c10::Error if `tensor_fields` of a struct returns copies.
template <typename T>
void replace_leaves(T& value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    // `value` is not const, so the cast is valid.
    const_cast<at::Tensor&>(tensor) = tensors[next++];
  });
  next = 0;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_same(tensors[next++]),
                "Expected tensor_fields to return references to the tensors, "
                "but got copies; return std::tie(...)");
  });
}

/// The result of one part of a batch.
struct PartResult {
  std::vector<at::Tensor> leaves;
  /// Sizes of containers, keys of maps and similar properties of the result.
  std::vector<std::string> structure;
};

template <typename T>
PartResult result_of(const T& value) {
  struct Visit {
    void operator()(const at::Tensor& tensor) const {
      found.leaves.push_back(tensor);
    }
    void operator()(const Structure& part) const {
      found.structure.push_back(part.text);
    }
    PartResult& found;
  };
  PartResult found;
  for_each_tensor(value, Visit{found});
  return found;
}

/// Returns, for each leaf of the results, the tensors of all parts. A leaf that
/// is undefined must be undefined in all parts. `parts` must not be empty.
/// @throws c10::Error if the results have different structures.
std::vector<std::vector<at::Tensor>> leaves_by_place(
    const std::vector<PartResult>& parts);

/// Type-erased call of `DataParallel::forward`: holds the arguments of all
/// parts of the batch and the results of the replicas. Parts are numbered from
/// 0.
class ForwardCall {
 public:
  virtual ~ForwardCall() = default;

  /// Returns the tensors in the arguments.
  virtual std::vector<at::Tensor> inputs() const = 0;
  /// Creates the arguments of each part: copies in which the part's chunks
  /// replace the `inputs`.
  virtual void split(const std::vector<std::vector<at::Tensor>>& chunks) = 0;
  /// Calls the replica's forward with the arguments of a part and stores the
  /// result. Different parts may run concurrently.
  virtual void run(size_t part, torch::nn::Module& replica) = 0;
  /// Returns the result of each part. Call after all parts have run.
  virtual std::vector<PartResult> results() = 0;
  /// Replaces the tensors in the first part's result by `leaves`.
  virtual void gather(const std::vector<at::Tensor>& leaves) = 0;
};

template <typename M, typename = void, typename... Args>
struct ForwardResult {
  static constexpr bool kExists = false;
};
template <typename M, typename... Args>
struct ForwardResult<
    M,
    std::void_t<decltype(std::declval<M&>().forward(std::declval<Args>()...))>,
    Args...> {
  static constexpr bool kExists = true;
  using Type = std::decay_t<decltype(std::declval<M&>().forward(
      std::declval<Args>()...))>;
};

/// A call of `M::forward` with copies of arguments of the types `Args`.
template <typename M, typename... Args>
class TypedForwardCall final : public ForwardCall {
  using Forward = ForwardResult<M, void, Args...>;
  static_assert(Forward::kExists,
                "forward() cannot be called with copies of these arguments");

 public:
  using Result = typename Forward::Type;
  static_assert(!std::is_void_v<Result>, "forward() must return something");

  template <typename... Given>
  explicit TypedForwardCall(Given&&... given)
      : arguments_(std::forward<Given>(given)...) {}

  std::vector<at::Tensor> inputs() const override { return leaves(arguments_); }

  void split(const std::vector<std::vector<at::Tensor>>& chunks) override {
    of_parts_ = std::vector<Arguments>(chunks.size(), arguments_);
    results_ = std::vector<std::optional<Result>>(chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      replace_leaves(of_parts_[i], chunks[i]);
    }
  }

  void run(size_t part, torch::nn::Module& replica) override {
    results_[part].emplace(std::apply(
        [&](auto&... arguments) {
          return dynamic_cast<M&>(replica).forward(std::move(arguments)...);
        },
        of_parts_[part]));
  }

  std::vector<PartResult> results() override {
    of_parts_.clear();  // frees memory for gathering
    std::vector<PartResult> parts;
    for (const auto& result : results_) {
      parts.push_back(result_of(*result));
    }
    return parts;
  }

  void gather(const std::vector<at::Tensor>& leaves) override {
    replace_leaves(*results_.front(), leaves);
  }

  /// Moves out the result of the first part.
  Result take_first() { return std::move(*results_.front()); }

  std::vector<Result> take_each() {
    std::vector<Result> each;
    for (auto& result : results_) {
      each.push_back(std::move(*result));
    }
    return each;
  }

 private:
  using Arguments = std::tuple<Args...>;

  const Arguments arguments_;
  std::vector<Arguments> of_parts_;
  std::vector<std::optional<Result>> results_;
};

}  // namespace dp::detail
