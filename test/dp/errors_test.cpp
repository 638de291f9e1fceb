// Bad input and errors in replicas: each is one clear error, and the wrapper
// works afterwards if possible.
#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <atomic>
#include <map>
#include <string_view>
#include <unordered_map>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"

namespace dp {
namespace errors_test {

using test::lambda;
using test::on_cpus;
using torch::Tensor;

/// Returns the text of the c10::Error that `f` throws.
template <typename F>
std::string error_of(F f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

/// Calls `fail` with the replica's number, which is the first value of its
/// part.
struct FailingImpl : torch::nn::Cloneable<FailingImpl> {
  explicit FailingImpl(std::function<void(int64_t)> fail)
      : fail(std::move(fail)) {
    reset();
  }
  void reset() override { fc = register_module("fc", torch::nn::Linear(1, 1)); }
  Tensor forward(const Tensor& x) {
    fail(x[0].item<int64_t>());
    return fc(x);
  }
  std::function<void(int64_t)> fail;
  torch::nn::Linear fc{nullptr};
};

Tensor replica_numbers() {
  return torch::arange(3.0).unsqueeze(1);
}

TEST_CASE("an error in one replica", "[dp]") {
  std::atomic<int> finished{0};
  std::atomic<bool> fails{true};
  const auto net = std::make_shared<FailingImpl>([&](int64_t replica) {
    TORCH_CHECK(!fails || replica != 2, "too hot");
    ++finished;
  });
  {
    DataParallel model(net, on_cpus(3));
    for (int round = 0; round < 5; ++round) {
      finished = 0;
      fails = true;
      CHECK(error_of([&] { model->forward(replica_numbers()); }) ==
            "too hot (replica 2 of 3 on cpu)");
      CHECK(finished == 2);  // the other replicas ran to the end
      fails = false;
      net->zero_grad();
      model->forward(replica_numbers()).sum().backward();
      CHECK(net->fc->weight.grad().template item<double>() == 3);
    }
  }
  CHECK(test::no_threads("dp_replica_"));
}

TEST_CASE("the first of several errors is reported", "[dp]") {
  // Replica 1 fails after replica 2.
  test::Counter failed;
  const auto net = std::make_shared<FailingImpl>([&](int64_t replica) {
    if (replica == 2) {
      failed.add();
      TORCH_CHECK(false, "second");
    }
    if (replica == 1) {
      failed.wait_for(1);
      TORCH_CHECK(false, "first");
    }
  });
  DataParallel model(net, on_cpus(3));
  CHECK(error_of([&] { model->forward(replica_numbers()); }) ==
        "first (replica 1 of 3 on cpu)");
}

TEST_CASE("errors keep their type", "[dp]") {
  const auto thrown_by = [](auto error) {
    const auto net = std::make_shared<FailingImpl>(
        [error](int64_t) -> void { throw error; });
    DataParallel model(net, on_cpus(3));
    model->forward(replica_numbers());
  };
  CHECK_THROWS_AS(
      thrown_by(c10::IndexError({"f", "file", 1}, "beyond the end")),
      c10::IndexError);
  CHECK(error_of([&] { thrown_by(std::out_of_range("beyond")); }) ==
        "beyond (replica 0 of 3 on cpu)");
  CHECK(error_of([&] { thrown_by(7); }) ==
        "An exception of unknown type (replica 0 of 3 on cpu)");
  try {
    thrown_by(std::out_of_range("beyond"));
  } catch (const c10::Error& error) {
    CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
  }
}

/// A parameter a and a buffer b.
struct TwoImpl : torch::nn::Cloneable<TwoImpl> {
  explicit TwoImpl(torch::Device b_on) : b_on(b_on) { reset(); }
  void reset() override {
    register_parameter("a", torch::ones({1}));
    register_buffer("b", torch::ones({1}, b_on));
  }
  Tensor forward(const Tensor& x) { return x; }
  void move_a() { parameters_["a"] = torch::ones({1}, torch::kMeta); }
  torch::Device b_on;
};

TEST_CASE("a module that is not on the first device", "[dp]") {
  // The meta device is a second device that exists on every machine.
  const auto apart = std::make_shared<TwoImpl>(torch::kMeta);
  const std::string expected =
      "Expected the module to have its parameters and buffers on cpu, the "
      "first of its devices, but got b on meta; call to(device) on the module";
  CHECK(error_of([&] { DataParallel(apart, on_cpus(1)); }) == expected);
  CHECK(error_of([&] { DataParallel(apart, on_cpus(2)); }) == expected);
  CHECK(error_of([&] {
          test::data_parallel(apart, torch::ones({2}), test::cpus(2));
        }) == expected);
  const auto net = std::make_shared<TwoImpl>(torch::kCPU);
  DataParallel model(net, on_cpus(2));
  model->forward(torch::ones({2}));
  net->move_a();
  CHECK_THAT(error_of([&] { model->forward(torch::ones({2})); }),
             Catch::Contains("but got a on meta"));
}

TEST_CASE("devices that are not there", "[dp]") {
  torch::nn::Linear net(3, 1);
  const auto count = static_cast<int64_t>(torch::cuda::device_count());
  CHECK_THAT(error_of([&] {
               DataParallel(net, DataParallelOptions().device_ids({count}));
             }),
             Catch::Contains("Expected a device that is there, but got cuda:" +
                             std::to_string(count)));
  CHECK_THAT(error_of([&] {
               DataParallel(
                   net,
                   on_cpus(2).output_device(torch::Device(
                       torch::kCUDA, static_cast<c10::DeviceIndex>(count))));
             }),
             Catch::Contains("Expected a device that is there"));
  for (const int64_t id : {-1, -2, 128, 256}) {
    CHECK(error_of([&] {
            DataParallelOptions().device_ids({0, id});
          }) == "Expected numbers of GPUs from 0 to 127, but got " +
                    std::to_string(id));
  }
}

TEST_CASE("options that do not fit", "[dp]") {
  torch::nn::Linear net(3, 1);
  CHECK_THAT(error_of([&] { DataParallel(net, on_cpus(2).chunk_sizes({1})); }),
             Catch::Contains("Expected one of chunk_sizes for each of 2"));
  CHECK_THAT(
      error_of([&] { DataParallel(net, on_cpus(2).aggregate(nullptr)); }),
      Catch::Contains("Expected a function to aggregate results"));
  CHECK_THAT(
      error_of([&] { DataParallel(std::shared_ptr<torch::nn::LinearImpl>()); }),
      Catch::Contains("Expected a module to wrap"));
  DataParallel model(net, on_cpus(2).chunk_sizes({1, 2}));
  CHECK_THAT(error_of([&] {
               model->forward(torch::ones({4, 3}));
             }),
             Catch::Contains("Expected a batch of 3 rows"));
}

TEST_CASE("modules that cannot be replicated", "[dp]") {
  struct NoCloneImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x; }
  };
  CHECK_THAT(
      error_of(
          [] { DataParallel(std::make_shared<NoCloneImpl>(), on_cpus(2)); }),
      Catch::Contains("NoCloneImpl (derive it from torch::nn::Cloneable, with "
                      "a reset() that makes all of its parts anew, or give "
                      "DataParallelOptions().make_replica()): clone() has not "
                      "been implemented"));
  // DerivedImpl's clone() is that of its base class.
  struct DerivedImpl : torch::nn::LinearImpl {
    using LinearImpl::LinearImpl;
  };
  CHECK_THAT(error_of([] {
               DataParallel(std::make_shared<DerivedImpl>(3, 1), on_cpus(2));
             }),
             Catch::Contains("; clone() must be that of the most derived"));
  struct Growing : torch::nn::Module {
    explicit Growing(int layers) {
      for (int i = 0; i < layers; ++i) {
        register_module("fc" + std::to_string(i), torch::nn::Linear(1, 1));
      }
    }
    Tensor forward(const Tensor& x) { return x; }
  };
  const auto net = std::make_shared<Growing>(2);
  const auto with = [&](std::shared_ptr<torch::nn::Module> replica) {
    return error_of([&] {
      DataParallel(net, on_cpus(2).make_replica([&] { return replica; }));
    });
  };
  CHECK(with(std::make_shared<Growing>(2)) == "no error");
  CHECK_THAT(with(std::make_shared<Growing>(1)),
             Catch::Contains("but got nothing where it has fc1.weight"));
  CHECK_THAT(with(std::make_shared<Growing>(3)),
             Catch::Contains("but got fc2.weight where it has nothing"));
  CHECK_THAT(with(net),
             Catch::Contains("but fc0.weight is that of the module or"));
  CHECK_THAT(with(nullptr), Catch::Contains("but got an empty pointer"));
}

TEST_CASE("a replica given twice", "[dp]") {
  torch::nn::Linear net(1, 1);
  torch::nn::Linear other(1, 1);
  CHECK_THAT(error_of([&] {
               DataParallel(
                   net, on_cpus(3).make_replica([&] { return other.ptr(); }));
             }),
             Catch::Contains("but weight is that of the module or of another "
                             "replica; make each anew"));
}

TEST_CASE("embeddings with max_norm", "[dp]") {
  const auto rows = torch::tensor({0L, 1L, 2L, 3L});
  const auto wrap = [](int replicas) {
    return DataParallel(torch::nn::Sequential(torch::nn::Embedding(
                            torch::nn::EmbeddingOptions(4, 2).max_norm(1))),
                        on_cpus(replicas));
  };
  CHECK_THROWS_WITH(wrap(2),
                    Catch::Contains("0.weight with it; leave max_norm out"));
  CHECK_NOTHROW(wrap(1)->forward(rows));
  CHECK_THROWS_WITH(
      DataParallel(torch::nn::EmbeddingBag(
                       torch::nn::EmbeddingBagOptions(4, 2).max_norm(1)),
                   on_cpus(2)),
      Catch::Contains("but got weight with it"));
}

TEST_CASE("sparse buffers", "[dp]") {
  struct SparseImpl : torch::nn::Cloneable<SparseImpl> {
    SparseImpl() { reset(); }
    void reset() override { register_buffer("b", torch::eye(2).to_sparse()); }
    Tensor forward(const Tensor& x) { return x; }
  };
  CHECK_THAT(
      error_of(
          [] { DataParallel(std::make_shared<SparseImpl>(), on_cpus(2)); }),
      Catch::Contains("Expected dense parameters and buffers, but got b with "
                      "layout Sparse"));
}

enum class Head : char { a = 7, b = 8 };

/// Returns the error of gathering the results of `f(replica)`.
template <typename F>
std::string gather_error(F f) {
  const auto net = lambda(
      [f](auto&, const Tensor& x) { return f(x[0].template item<int64_t>()); });
  DataParallel model(net, on_cpus(3));
  return error_of([&] { model->forward(replica_numbers()); });
}

TEST_CASE("results that cannot be gathered", "[dp]") {
  using Map = std::map<std::string, Tensor>;
  const auto one = torch::ones({1});
  CHECK_THAT(gather_error([](int64_t i) {
               return torch::ones({2, 1 + i / 2});
             }),
             Catch::Contains("but got [2, 1] first and [2, 2] from part 2"));
  CHECK_THAT(
      gather_error([](int64_t i) {
        return std::pair(1, std::vector<Tensor>{torch::ones({2, 1 + i})});
      }),
      Catch::Contains("(in tensor 0 of the result)"));
  CHECK(gather_error([&](int64_t i) {
          return std::vector<Tensor>(static_cast<size_t>(2 - i / 2), one);
        }) ==
        "Expected replicas to return results alike, but got 2 elements first "
        "and 1 elements from part 2");
  CHECK(gather_error([&](int64_t i) {
          return std::tuple(i == 1 ? Map{{"a", one}, {"b", one}}
                                   : Map{{"a", one}, {"c", one}});
        }) ==
        "Expected replicas to return results alike, but got key \"c\" first "
        "and key \"b\" from part 1");
  CHECK(gather_error([&](int64_t i) {
          return i == 2 ? Map{{"a", one}, {"b", one}} : Map{{"a", one}};
        }) ==
        "Expected replicas to return results alike, but got 1 keys first and "
        "2 keys from part 2");
  CHECK(gather_error([&](int64_t i) {
          return std::map<Head, Tensor>{{i == 0 ? Head::a : Head::b, one}};
        }) ==
        "Expected replicas to return results alike, but got key 7 first and "
        "key 8 from part 1");
  CHECK(gather_error([&](int64_t i) {
          return std::unordered_map<std::string_view, Tensor>{
              {i == 0 ? "a" : "b", one}};
        }) ==
        "Expected replicas to return results alike, but got key \"a\" first "
        "and key \"b\" from part 1");
  // Keys are distinguished by their text. Keys without a text do not compile.
  STATIC_REQUIRE_FALSE(detail::has_key_text<double>);
  STATIC_REQUIRE_FALSE(detail::has_key_text<std::pair<int, int>>);
  CHECK(gather_error([&](int64_t i) {
          return i == 0 ? std::optional(one) : std::nullopt;
        }) ==
        "Expected replicas to return results alike, but got a value first "
        "and no value from part 1");
  CHECK(gather_error([&](int64_t i) {
          using Some = std::vector<Tensor>;
          return i == 0 ? std::pair(Some{one, one}, Some{one})
                        : std::pair(Some{one}, Some{one, one});
        }) ==
        "Expected replicas to return results alike, but got 2 elements first "
        "and 1 elements from part 1");
  CHECK(gather_error([&](int64_t i) { return i == 0 ? Tensor() : one; }) ==
        "Expected replicas to return results alike, but got an undefined "
        "tensor first and a tensor from part 1");
}

struct Copies {
  Tensor tensor;
};
auto tensor_fields(const Copies& copies) {
  return std::tuple(copies.tensor);
}

TEST_CASE("a struct whose tensor_fields returns copies", "[dp]") {
  DataParallel model(lambda([](auto&, const Copies& c) { return c.tensor; }),
                     on_cpus(2));
  CHECK_THAT(error_of([&] { model->forward(Copies{torch::ones({4})}); }),
             Catch::Contains("Expected tensor_fields to return references"));
}

}  // namespace errors_test
}  // namespace dp
