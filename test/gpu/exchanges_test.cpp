#include <algorithm>
#include <cmath>

#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "ddp/exchanges/power_sgd.h"
#include "ddp/reducer.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/support/exchange_ways.h"
#include "test/support/state_dict.h"

// Tests exchanges over NCCL with buckets that are filled on several streams.
// None is the caller's stream, and each continues with other work at once. If
// an exchange misses a wait or releases memory too early, some schedule of the
// stand-in gives wrong values.
namespace ddp {
namespace exchanges_test {

using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// Returns small integers, which narrow dtypes represent exactly. Each value
/// occurs four times in a row, and the matrix has rank one.
Tensor pattern(int64_t index) {
  const auto rows = torch::arange(1 + index, 9 + index).remainder(5).sub(2);
  const auto columns =
      torch::arange(3).add(index).remainder(3).add(1).repeat_interleave(4);
  return torch::outer(rows, columns).to(torch::kFloat);
}

void wait_for(c10::Stream stream, c10::Stream other) {
  c10::Event so_far(c10::kCUDA);
  so_far.record(other);
  so_far.block(stream);
}

/// Parameters with one bucket each, each used on its own stream.
class Streams {
 public:
  static constexpr int64_t kCount = 4;

  Streams(const NcclRank& rank, std::shared_ptr<Exchange> exchange)
      : rank_(rank), caller_(rank.new_stream()) {
    for (int64_t i = 0; i < kCount; ++i) {
      streams_.push_back(rank.new_stream());
      const c10::StreamGuard guard(streams_.back());
      parameters_.push_back(torch::ones({8, 12}, rank.device).requires_grad_());
      // Autograd accumulates on the stream on which a leaf was first used.
      uses_.push_back(parameters_.back() * 1);
      named_.push_back({"w" + std::to_string(i), parameters_.back()});
    }
    for (const auto& stream : streams_) {
      stream.synchronize();
    }
    reducer_ = std::make_unique<Reducer>(named_,
                                         rank.group,
                                         Options()
                                             .exchange(std::move(exchange))
                                             .first_bucket_cap_mb(1e-4)
                                             .bucket_cap_mb(1e-4));
  }

  /// Releases the reducer and the exchange. The streams of the buckets may use
  /// the memory at once.
  void end() {
    reducer_.reset();
    for (const auto& stream : streams_) {
      go_on(stream);
    }
  }

  c10::Stream caller() const { return caller_; }

  /// Runs a pass in which the gradient of parameter i is factors[i].
  void pass(const std::vector<Tensor>& factors) {
    const c10::StreamGuard guard(caller_);
    std::vector<Tensor> losses;
    for (int64_t i = 0; i < kCount; ++i) {
      wait_for(streams_[i], caller_);  // waits for changes of the parameters
      const c10::StreamGuard side(streams_[i]);
      parameters_[i].mutable_grad() = Tensor();
      losses.push_back((parameters_[i] * factors[i].to(rank_.device)).sum());
    }
    torch::autograd::backward(std::exchange(losses, {}), {});
    for (const auto& stream : streams_) {
      go_on(stream);
    }
  }

  /// Returns copies on the host of tensors computed on the caller's stream.
  std::vector<Tensor> on_host(const std::vector<Tensor>& tensors) const {
    const c10::StreamGuard guard(caller_);
    std::vector<Tensor> result;
    for (const auto& tensor : tensors) {
      result.push_back(tensor.detach().cpu());
    }
    return result;
  }

  std::vector<Tensor> gradients() const {
    std::vector<Tensor> result;
    for (const auto& parameter : parameters_) {
      rank_.expect(parameter.grad().defined(), "a gradient is missing");
      result.push_back(parameter.grad());
    }
    return on_host(result);
  }

 private:
  /// Overwrites all memory that is free for a stream.
  void go_on(c10::Stream stream) {
    const c10::StreamGuard guard(stream);
    std::vector<Tensor> blocks;
    for (const int64_t numel : {1, 128, 256, 384, 512}) {
      for (int i = 0; i < 8; ++i) {
        blocks.push_back(torch::full(
            {numel},
            std::nan(""),
            torch::TensorOptions(rank_.device).dtype(torch::kFloat)));
      }
    }
  }

  const NcclRank& rank_;
  c10::Stream caller_;
  std::vector<c10::Stream> streams_;
  std::vector<Tensor> parameters_;
  std::vector<Tensor> uses_;
  std::vector<NamedParameter> named_;
  std::unique_ptr<Reducer> reducer_;
};

std::vector<Tensor> patterns_times(double factor) {
  std::vector<Tensor> result;
  for (int64_t i = 0; i < Streams::kCount; ++i) {
    result.push_back(pattern(i) * factor);
  }
  return result;
}

void expect_all_close(const NcclRank& rank,
                      const std::vector<Tensor>& got,
                      const std::vector<Tensor>& expected,
                      const std::string& what) {
  for (size_t i = 0; i < got.size(); ++i) {
    rank.expect_close(got[i], expected[i], what + " " + std::to_string(i));
  }
}

TEST_CASE("an exchange waits for the streams of its buckets", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  const auto ways = test::device_ways();
  const auto& way = ways[GENERATE_COPY(range(size_t{0}, ways.size()))];
  INFO(way.name);
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Streams streams(rank, way.make(rank.group));
    for (int step = 1; step <= 4; ++step) {
      streams.pass(patterns_times(step * (rank.rank + 1.0)));
      expect_all_close(rank,
                       streams.gradients(),
                       patterns_times(step * test::device_factor(way)),
                       c10::str(way.name, ", step ", step, ", gradient"));
    }
  });
}

TEST_CASE("an exchange that ends keeps its memory until it has been read",
          "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  const auto ways = test::device_ways();
  const auto& way = ways[GENERATE_COPY(range(size_t{0}, ways.size()))];
  INFO(way.name);
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Streams streams(rank, way.make(rank.group));
    // From the second pass on, each bucket starts on its own stream.
    for (int step = 1; step <= 2; ++step) {
      streams.pass(patterns_times(step * (rank.rank + 1.0)));
    }
    streams.end();
    expect_all_close(rank,
                     streams.gradients(),
                     patterns_times(2 * test::device_factor(way)),
                     c10::str(way.name, ", gradient"));
  });
}

// 97 elements and 7 of padding, in memory with other values before.
TEST_CASE("a code's last block ends with zeros in each pass", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const auto options = torch::TensorOptions(rank.device);
    const auto some_nans = [&] {
      std::vector<Tensor> blocks;
      for (int i = 0; i < 8; ++i) {
        blocks.push_back(torch::full({104}, std::nan(""), options));
      }
      return blocks;
    };
    auto first = some_nans();  // at lower addresses than the bucket
    const auto a = torch::ones({97}, options).requires_grad_();
    Reducer reducer(
        {{"a", a}},
        rank.group,
        Options().exchange(std::make_shared<QuantizedExchange>(rank.group, 4)));
    first.clear();
    for (int pass = 1; pass <= 4; ++pass) {
      a.mutable_grad() = Tensor();
      some_nans();
      const auto loss = (a * (pass * (rank.rank + 1.0))).sum();
      loss.backward();
      rank.expect_close(a.grad().cpu(),
                        torch::full({97}, pass * 1.5),
                        c10::str("gradient of pass ", pass));
    }
  });
}

/// Returns a matrix of unrestricted rank.
Tensor matrix(int64_t index, double seed) {
  const auto places = torch::arange(8 * 12, torch::kDouble) + index;
  return (places * places * (0.37 + seed) + seed)
      .sin()
      .view({8, 12})
      .to(torch::kFloat);
}

TEST_CASE("later steps on a GPU make up for PowerSGD's error", "[gpu]") {
  if (!has_gpus(2)) {
    return;
  }
  const int64_t low_rank = GENERATE(1, 2);
  const bool is_warm = GENERATE(false, true);
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const auto exchange = std::make_shared<PowerSGD>(
        rank.group,
        PowerSGDOptions().rank(low_rank).warm_start(is_warm).start_after(0));
    Streams streams(rank, exchange);
    std::vector<Tensor> given(Streams::kCount, torch::zeros({8, 12}));
    std::vector<Tensor> got(Streams::kCount, torch::zeros({8, 12}));
    for (int step = 1; step <= 4; ++step) {
      std::vector<Tensor> factors;
      for (int64_t i = 0; i < Streams::kCount; ++i) {
        factors.push_back(matrix(i, step + 10 * rank.rank));
        given[i] = given[i] + (matrix(i, step) + matrix(i, step + 10)) / 2;
      }
      streams.pass(factors);
      const auto gradients = streams.gradients();
      const c10::StreamGuard guard(streams.caller());
      const auto state = exchange->state_dict();
      std::vector<Tensor> sums;
      for (int64_t i = 0; i < Streams::kCount; ++i) {
        got[i] = got[i] + gradients[i];
        std::vector<Tensor> error{
            test::entry(state, "w" + std::to_string(i) + ".error")
                .toTensor()
                .view({8, 12}) /
            2};
        rank.group->allreduce(error)->wait();
        rank.expect(error[0].abs().max().item<float>() > 0.01,
                    "nothing was left out");
        sums.push_back(got[i] + error[0].cpu());
      }
      expect_all_close(rank,
                       sums,
                       given,
                       c10::str("step ", step, ", what came and is left"));
    }
  });
}

}  // namespace exchanges_test
}  // namespace ddp
