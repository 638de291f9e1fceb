#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "dp/data_parallel/detail/leaves.h"

namespace dp::detail {

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
