// Arguments and results of forward.
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/rnn.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <deque>
#include <list>
#include <set>
#include <sstream>
#include <variant>

#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/support/catch.h"
#include "test/support/warnings.h"

namespace dp {
namespace inputs_and_results_test {

using ddp::test::Warnings;
using test::cpus;
using test::lambda;
using test::on_cpus;
using test::Output;
using torch::Tensor;

struct Batch {
  Tensor images;
  std::optional<Tensor> labels;
  std::string name;
  std::vector<Tensor> more;
};
auto tensor_fields(const Batch& batch) {
  return std::tie(batch.images, batch.labels, batch.more);
}

/// An argument that all replicas share, because it has no tensor_fields to
/// split.
struct Whole {
  Tensor value;
};

/// Runs `f(self, args...)` on three replicas.
template <typename Function, typename... Args>
auto run(Function f, Args&&... args) {
  DataParallel model(lambda(std::move(f)), on_cpus(3));
  return model->forward(std::forward<Args>(args)...);
}

Tensor numbers(int64_t rows) {
  return torch::arange(static_cast<double>(rows)).unsqueeze(1);
}

TEST_CASE("arguments of all kinds are split", "[dp]") {
  const auto x = numbers(5);
  const auto doubled = run([](auto&, const Tensor& t) { return t * 2; }, x);
  CHECK(doubled.equal(x * 2));
  CHECK(run([](auto&, std::vector<Tensor> t) { return t[0] + t[1]; },
            std::vector<Tensor>{x, x * 10})
            .equal(x * 11));
  CHECK(run([](auto&, std::array<Tensor, 2> t) { return t[0] + t[1]; },
            std::array<Tensor, 2>{x, x * 10})
            .equal(x * 11));
  CHECK(run([](auto&,
               std::map<std::string, Tensor> t) { return t["a"] + t["b"]; },
            std::map<std::string, Tensor>{{"a", x}, {"b", x * 10}})
            .equal(x * 11));
  CHECK(run(
            [](auto&, std::pair<Tensor, std::tuple<int, Tensor>> t) {
              return t.first * std::get<0>(t.second) + std::get<1>(t.second);
            },
            std::pair(x, std::tuple(3, x * 10)))
            .equal(x * 13));
  CHECK(run(
            [](auto&, std::optional<Tensor> a, std::optional<Tensor> b) {
              return a && !b ? *a : Tensor();
            },
            std::optional<Tensor>(x),
            std::optional<Tensor>())
            .equal(x));
  CHECK(run(
            [](auto&, const Batch& batch) {
              return batch.images + *batch.labels + batch.more[0] +
                     static_cast<int64_t>(batch.name.size());
            },
            Batch{x, x * 10, "four", {x * 100}})
            .equal(x * 111 + 4));
  CHECK(run(
            [](auto&, const Tensor& a, const Tensor& undefined) {
              return undefined.defined() ? Tensor() : a;
            },
            x,
            Tensor())
            .equal(x));
}

TEST_CASE("for_each_tensor finds every tensor", "[dp]") {
  const auto t = torch::ones({1});
  const auto count = [](const auto& value) {
    int found = 0;
    detail::for_each_tensor(value, [&](const Tensor&) { ++found; });
    return found;
  };
  CHECK(count(t) == 1);
  CHECK(count(7) == 0);
  CHECK(count(std::string("text")) == 0);
  CHECK(count(std::optional<Tensor>()) == 0);
  CHECK(count(Output{t, std::nullopt, 0}) == 1);
  CHECK(count(std::vector<Output>{{t, t, 0}, {t, std::nullopt, 1}}) == 3);
  CHECK(count(std::tuple(t,
                         std::pair(t, std::array<Tensor, 2>{t, t}),
                         std::unordered_map<int, Tensor>{{1, t}})) == 5);
  // The walk follows the order of the keys, not the order of insertion.
  std::unordered_map<int, Tensor> map;
  for (int i = 99; i >= 0; --i) {
    map[i] = torch::tensor(i);
  }
  int64_t next = 0;
  detail::for_each_tensor(map, [&](const Tensor& tensor) {
    CHECK(tensor.item<int64_t>() == next++);
  });
}

TEST_CASE("an input may be changed in place", "[dp]") {
  const auto add = [](auto& self, Tensor x) {
    return x.add_(self.linear->weight);
  };
  const auto net = lambda(add, 2, 1);
  for (const int replicas : {1, 2, 3}) {
    CAPTURE(replicas);
    net->zero_grad();
    DataParallel model(net, on_cpus(replicas));
    auto x = torch::ones({6, 2});
    model->forward(x).sum().backward();
    CHECK(net->linear->weight.grad().equal(torch::full({1, 2}, 6.0)));
    // The caller's tensor changes, as with the plain module.
    CHECK(x.detach().equal((net->linear->weight + 1).expand({6, 2})));
  }
}

TEST_CASE("values that are no tensors go to every replica", "[dp]") {
  const auto x = numbers(6);
  CHECK(run(
            [](auto&,
               const Tensor& t,
               double factor,
               const std::string& text,
               const Whole& whole,
               bool negate = true) {
              return t * factor * static_cast<int64_t>(text.size()) *
                     whole.value.sum() * (negate ? -1 : 1);
            },
            x,
            2.0,
            "abc",
            Whole{torch::ones({7})})
            .equal(x * -42));
}

TEST_CASE("containers whose tensors would not be split are refused", "[dp]") {
  using detail::HidesTensors;
  STATIC_REQUIRE(HidesTensors<std::deque<Tensor>>::value);
  STATIC_REQUIRE(HidesTensors<std::set<Tensor>>::value);
  STATIC_REQUIRE(HidesTensors<at::TensorList>::value);
  STATIC_REQUIRE(HidesTensors<c10::List<Tensor>>::value);
  STATIC_REQUIRE(HidesTensors<std::multimap<int, Tensor>>::value);
  STATIC_REQUIRE(HidesTensors<std::variant<int, Tensor>>::value);
  STATIC_REQUIRE(HidesTensors<torch::OrderedDict<std::string, Tensor>>::value);
  STATIC_REQUIRE(HidesTensors<c10::Dict<std::string, Tensor>>::value);
  STATIC_REQUIRE(HidesTensors<std::list<std::vector<Batch>>>::value);
  STATIC_REQUIRE_FALSE(HidesTensors<Tensor>::value);
  STATIC_REQUIRE_FALSE(HidesTensors<Batch>::value);
  STATIC_REQUIRE_FALSE(HidesTensors<Whole>::value);
  STATIC_REQUIRE_FALSE(HidesTensors<std::string>::value);
  STATIC_REQUIRE_FALSE(HidesTensors<std::deque<int>>::value);
  STATIC_REQUIRE_FALSE(HidesTensors<std::map<std::string, Tensor>>::value);
  STATIC_REQUIRE_FALSE(
      HidesTensors<std::vector<std::pair<int, std::array<Tensor, 2>>>>::value);
}

TEST_CASE("a packed sequence is neither split nor put together", "[dp]") {
  namespace rnn = torch::nn::utils::rnn;
  const auto packed = rnn::pack_padded_sequence(torch::ones({3, 3, 1}),
                                                torch::tensor({3, 2, 1}));
  const auto refuses = [](const auto& f) {
    CHECK_THROWS_WITH(f(),
                      Catch::Contains("but got a PackedSequence; give and"));
  };
  refuses([&] {
    run([](auto&, const rnn::PackedSequence& x) { return x.data(); }, packed);
  });
  refuses(
      [&] { run([&](auto&, const Tensor&) { return packed; }, numbers(3)); });
}

TEST_CASE("results of all kinds are gathered", "[dp]") {
  const auto x = numbers(5);
  const auto in_vector = run(
      [](auto&, const Tensor& t) {
        return std::vector<Tensor>{t, t * 2};
      },
      x);
  CHECK(in_vector[0].equal(x));
  CHECK(in_vector[1].equal(x * 2));
  const auto in_array = run(
      [](auto&, const Tensor& t) {
        return std::array<Tensor, 2>{t, t * 2};
      },
      x);
  CHECK(in_array[1].equal(x * 2));
  auto in_map = run(
      [](auto&, const Tensor& t) {
        return std::map<std::string, std::vector<Tensor>>{{"a", {t}},
                                                          {"b", {t * 3}}};
      },
      x);
  CHECK(in_map["b"][0].equal(x * 3));
  auto in_hash_map = run(
      [](auto&, const Tensor& t) {
        std::unordered_map<int, Tensor> map;
        // The order of insertion differs between replicas.
        for (int i = 0; i < 20; ++i) {
          const int key = t[0].item<int>() % 4 == 0 ? i : 19 - i;
          map[key] = t * key;
        }
        return map;
      },
      x);
  CHECK(in_hash_map.size() == 20);
  CHECK(in_hash_map[7].equal(x * 7));
  const auto [number, pair] = run(
      [](auto&, const Tensor& t) {
        return std::tuple(t.size(0), std::pair(t * 2, std::optional(t * 3)));
      },
      x);
  CHECK(number == 2);  // replica 0's result
  CHECK(pair.first.equal(x * 2));
  CHECK(pair.second->equal(x * 3));
  const auto batch = run(
      [](auto&, const Tensor& t) {
        return Batch{t, std::nullopt, "of " + std::to_string(t.size(0)), {t}};
      },
      x);
  CHECK(batch.images.equal(x));
  CHECK(batch.more[0].equal(x));
  CHECK(batch.name == "of 2");
  CHECK_FALSE(run([](auto&, const Tensor&) { return Tensor(); }, x).defined());
  CHECK(run([](auto&, const Tensor& t) { return t.size(0); }, x) == 2);
}

TEST_CASE("scalars become a vector, with a warning", "[dp]") {
  Warnings warnings;
  const auto sums =
      run([](auto&, const Tensor& t) { return t.sum(); }, numbers(5));
  CHECK(sums.equal(torch::tensor({1., 5., 4.})));
  REQUIRE(warnings.texts().size() == 1);
  CHECK_THAT(warnings.texts()[0],
             Catch::Contains("Was asked to gather along dimension 0, but all "
                             "input tensors were scalars; will instead "
                             "unsqueeze and return a vector."));
  // A scalar from only one of several devices becomes a vector, too.
  CHECK(run([](auto&, const Tensor& t) { return t.sum(); }, numbers(1)).dim() ==
        1);
}

TEST_CASE("calls one after the other warn once", "[dp]") {
  Warnings warnings;
  c10::WarningUtils::set_warnAlways(false);
  const auto net = lambda([](auto&, const Tensor& x) { return x.sum(); });
  const auto x = torch::ones({4, 3});
  test::data_parallel(net, x, test::cpus(2));
  warnings.clear();  // warnings of the process's first call
  test::data_parallel(net, x, test::cpus(2));
  CHECK(warnings.texts().empty());
}

TEST_CASE("results are aggregated as asked", "[dp]") {
  const auto total = [](auto&, const Tensor& t) {
    return std::pair(t.sum(), t.mean(0));
  };
  const auto aggregate = [&](Aggregate how) {
    DataParallel model(lambda(total), on_cpus(3).aggregate(std::move(how)));
    return model->forward(numbers(5));
  };
  CHECK(aggregate(sum).first.template item<double>() == 10);
  // The parts have 2, 2 and 1 rows.
  CHECK(aggregate(mean).second.template item<double>() ==
        Approx((0.5 * 2 + 2.5 * 2 + 4) / 5));
  const auto largest = aggregate([](const Parts& parts) {
    CHECK(parts.samples == std::vector<int64_t>{2, 2, 1});
    CHECK(parts.dim == 0);
    return torch::stack(parts.tensors).amax(0);
  });
  CHECK(largest.first.template item<double>() == 5);
  CHECK(largest.second.template item<double>() == 4);
  DataParallel model(lambda(total), on_cpus(3));
  const auto each = model->forward_each(numbers(5));
  REQUIRE(each.size() == 3);
  CHECK(each[2].first.template item<double>() == 4);
}

TEST_CASE("another dimension for inputs and results", "[dp]") {
  DataParallel model(lambda([](auto&, const Tensor& t) { return t * 2; }),
                     on_cpus(2).dim(1));
  const auto x = torch::arange(10.0).view({2, 5});
  CHECK(model->forward(x).equal(x * 2));
}

TEST_CASE("few rows, no rows, no tensors", "[dp]") {
  const auto net =
      lambda([](auto&, const Tensor& t) { return t.sum(1, true) + 1; });
  DataParallel model(net, on_cpus(4));
  for (const int64_t rows : {0, 1, 2, 3, 4, 5}) {
    const auto x = torch::ones({rows, 3});
    CHECK(model->forward(x).equal(net->forward(x)));
    CHECK(model->forward_each(x).size() == static_cast<size_t>(rows == 0 ? 1
                                                               : rows == 5
                                                                   ? 3
                                                                   : rows));
  }
  int calls = 0;
  const auto count = [&calls](auto&, auto... args) {
    ++calls;
    return torch::full({2}, static_cast<int64_t>(sizeof...(args)));
  };
  CHECK(run(count).equal(torch::tensor({0, 0})));
  CHECK(run(count, 5, "text").equal(torch::tensor({2, 2})));
  CHECK(calls == 2);
}

TEST_CASE("one device is a direct call", "[dp]") {
  std::thread::id thread;
  const auto net = lambda([&](auto&, const Tensor& t) {
    thread = std::this_thread::get_id();
    return t.sum();
  });
  DataParallel model(net, on_cpus(1));
  CHECK(model->forward(numbers(4)).dim() == 0);
  CHECK(thread == std::this_thread::get_id());
  CHECK(model->devices() == cpus(1));
}

TEST_CASE("without a GPU the default is the plain module", "[dp]") {
  if (torch::cuda::is_available()) {
    return;
  }
  // The module need not be cloneable.
  struct PlainImpl : torch::nn::Module {
    Tensor forward(const Tensor& t) { return t.sum(); }
  };
  DataParallel model(std::make_shared<PlainImpl>());
  CHECK(model->devices().empty());
  CHECK(model->output_device() == torch::Device(torch::kCPU));
  CHECK(model->forward(numbers(4)).item<double>() == 6);
  CHECK(model->forward_each(numbers(4)).size() == 1);
  CHECK(model->traffic().empty());
  CHECK(
      test::data_parallel(torch::nn::Identity(), numbers(4)).equal(numbers(4)));
}

/// The example in the documentation of DataParallel.
struct ParallelLayerImpl : DataParallelImpl<torch::nn::LinearImpl> {
  using DataParallelImpl::DataParallelImpl;
  Tensor forward(Tensor x) { return DataParallelImpl::forward(std::move(x)); }
};
TORCH_MODULE(ParallelLayer);

TEST_CASE("in a Sequential, and around one", "[dp]") {
  torch::nn::Linear first(3, 4);
  torch::nn::Linear last(4, 2);
  torch::nn::Sequential net(
      ParallelLayer(first, on_cpus(2)), torch::nn::ReLU(), last);
  const auto x = torch::randn({5, 3});
  const auto expected = last(torch::relu(first(x)));
  CHECK(test::close(net->forward(x), expected));
  torch::nn::AnyModule any(ParallelLayer(first, on_cpus(2)));
  CHECK(test::close(any.forward(x), first(x)));
  torch::nn::Sequential plain(first, torch::nn::ReLU(), last);
  DataParallel model(plain, on_cpus(2));
  CHECK(test::close(model(x), expected));
}

TEST_CASE("a wrapper prints and saves what it wraps", "[dp]") {
  torch::nn::Linear net(3, 2);
  DataParallel model(net, on_cpus(2));
  std::ostringstream text;
  text << *model;
  CHECK_THAT(text.str(),
             Catch::Contains(
                 "dp::DataParallel(devices=[cpu, cpu], output_device=cpu)"));
  CHECK_THAT(text.str(), Catch::Contains("torch::nn::Linear(in_features=3"));
  CHECK(model->named_parameters().contains("module.weight"));
  CHECK(model->module() == net.ptr());
  std::stringstream file;
  torch::save(model->module(), file);
  torch::nn::Linear loaded(3, 2);
  torch::load(loaded, file);
  CHECK(loaded->weight.equal(net->weight));
  // In the other direction, into existing replicas.
  std::stringstream back;
  {
    const torch::NoGradGuard no_grad;
    loaded->weight.fill_(2);
    loaded->bias.fill_(1);
  }
  torch::save(loaded, back);
  torch::load(model->module(), back);
  CHECK(model->forward(torch::ones({4, 3})).equal(torch::full({4, 2}, 7.0)));
}

}  // namespace inputs_and_results_test
}  // namespace dp
