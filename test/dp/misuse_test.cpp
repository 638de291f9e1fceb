// Calls that the replicas' threads cannot serve. Each is an error and never
// blocks.
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/nn/checkpoint_activations.h"
#include "ddp/nn/sync_batch_norm.h"
#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/no_more_threads.h"
#include "test/support/sanitizers.h"

namespace dp {
namespace misuse_test {

using test::close;
using test::lambda;
using test::on_cpus;
using torch::Tensor;

const std::string kOneAtATime = "Expected one forward of a DataParallel at a";

TEST_CASE("a forward in the module's own forward", "[dp]") {
  std::function<Tensor(const Tensor&)> again;
  const auto net = lambda([&](auto& self, const Tensor& x) {
    return again ? again(x) : self.linear(x);
  });
  DataParallel model(net, on_cpus(2));
  const auto x = torch::randn({4, 3});
  again = [&](const Tensor& part) { return model->forward(part); };
  CHECK_THROWS_WITH(model->forward(x),
                    Catch::Contains(kOneAtATime) &&
                        Catch::Contains("(replica 0 of 2 on cpu)"));
  again = nullptr;
  CHECK(close(model->forward(x), net->forward(x)));
  // A wrapper inside a replica of another wrapper has its own replicas.
  const auto inner = test::clone(net);
  DataParallel outer(lambda([&](auto&, const Tensor& part) {
                       return test::data_parallel(inner, part, test::cpus(2));
                     }),
                     on_cpus(1));
  CHECK(close(outer->forward(x), inner->linear(x)));
}

/// Uses the first of its two parameters.
struct HalfUsedImpl : torch::nn::Cloneable<HalfUsedImpl> {
  HalfUsedImpl() { reset(); }
  void reset() override {
    used = register_parameter("used", torch::ones({1}));
    spare = register_parameter("spare", torch::ones({1}));
  }
  Tensor forward(const Tensor& x) { return x * used; }
  Tensor used, spare;
};

TEST_CASE("within a wrapper that looks for unused parameters", "[dp]") {
  const bool finds = GENERATE(true, false);
  const auto net = std::make_shared<HalfUsedImpl>();
  DataParallel inner(net, on_cpus(2));
  ddp::DistributedDataParallel outer(
      inner,
      ddp::DistributedDataParallelOptions()
          .process_group(c10::make_intrusive<ddp::test::FakeBackend>(2))
          .find_unused_parameters(finds));
  const auto step = [&] { outer->forward(torch::ones({4})).sum().backward(); };
  if (finds) {
    step();
    CHECK(net->used.grad().defined());
    CHECK_FALSE(net->spare.grad().defined());
  } else {
    CHECK_THROWS_WITH((step(), step()), Catch::Contains("spare"));
  }
}

TEST_CASE("a batch norm over ranks in replicas", "[dp]") {
  const auto group = c10::make_intrusive<ddp::test::FakeBackend>(2);
  ddp::SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
  DataParallel model(norm, on_cpus(2));
  const auto x = torch::randn({4, 3});
  CHECK_THROWS_WITH(model->forward(x),
                    Catch::Contains("Expected SyncBatchNorm outside of the "
                                    "replicas of a DataParallel"));
  norm->eval();
  CHECK(close(model->forward(x), norm->forward(x)));
}

/// Whether a part of a network draws random numbers, and this part.
using DrawingPart = std::pair<bool, std::function<Tensor(const Tensor&)>>;

Tensor attention(const Tensor& x, double dropout) {
  const auto heads = x.unsqueeze(0).unsqueeze(0);
  return torch::scaled_dot_product_attention(
      heads, heads, heads, std::nullopt, dropout);
}

/// An LSTM of two layers with dropout, in evaluation mode.
Tensor recurrent(const Tensor& x) {
  std::vector<Tensor> weights;
  for (int layer = 0; layer < 2; ++layer) {
    weights.push_back(torch::full({8, 2}, 0.1));
    weights.push_back(torch::full({8, 2}, 0.2));
  }
  const auto state = torch::zeros({2, 1, 2});
  return std::get<0>(torch::lstm(x.unsqueeze(0),
                                 {state, state},
                                 weights,
                                 /*has_biases=*/false,
                                 /*num_layers=*/2,
                                 /*dropout=*/0.5,
                                 /*train=*/false,
                                 /*bidirectional=*/false,
                                 /*batch_first=*/true));
}

TEST_CASE("replicas that draw on the CPU what they compute again", "[dp]") {
  const auto [draws_inside, part] = GENERATE(values<DrawingPart>({
      {false, [](const Tensor& z) { return torch::tanh(z); }},
      {true, [](const Tensor& z) { return torch::dropout(z, 0.5, true); }},
      {true, [](const Tensor& z) { return z * torch::rand_like(z); }},
      {true, [](const Tensor& z) { return torch::rrelu(z, 0.1, 0.3, true); }},
      {true, [](const Tensor& z) { return attention(z, 0.5); }},
      // LibTorch marks these operators as random, although they draw nothing.
      {false, [](const Tensor& z) { return torch::dropout(z, 0, true); }},
      {false, [](const Tensor& z) { return torch::dropout(z, 0.5, false); }},
      {false, [](const Tensor& z) { return torch::rrelu(z, 0.1, 0.3, false); }},
      {false, [](const Tensor& z) { return attention(z, 0); }},
      {false, &recurrent},
  }));
  bool others_draw = true;
  const auto net = lambda([&, part = part](auto& self, const Tensor& x) {
    auto y = ddp::checkpoint_activations(
        [&](const Tensor& z) {
          // Another thread may draw during this part.
          if (others_draw) {
            std::thread([] { torch::rand({1}); }).join();
          }
          return part(self.linear(z));
        },
        x);
    // Other replicas draw here while this one is in its checkpointed part.
    return torch::dropout(y, 0.5, true);
  });
  DataParallel model(net, on_cpus(4));
  const auto x = torch::randn({64, 3});
  for (int step = 0; step < 20; ++step) {
    if (draws_inside) {
      CHECK_THROWS_WITH(
          model->forward(x),
          Catch::Contains("to draw no random numbers on the CPU"));
    } else {
      CHECK_NOTHROW(model->forward(x).sum().backward());
    }
  }
  // With one device the forward is that of the module.
  others_draw = false;
  DataParallel one(net, on_cpus(1));
  CHECK_NOTHROW(one->forward(x).sum().backward());
}

TEST_CASE("two threads", "[dp]") {
  test::Counter inside;
  test::Counter goes_on;
  const auto net = lambda([&](auto& self, const Tensor& x) {
    inside.add();
    goes_on.wait_for(1);
    return self.linear(x);
  });
  DataParallel model(net, on_cpus(2));
  const auto x = torch::randn({4, 3});
  auto first =
      std::async(std::launch::async, [&] { return model->forward(x); });
  inside.wait_for(2);
  const std::string second = [&]() -> std::string {
    try {
      model->forward(x);
      return "no error";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
  }();
  CHECK_THROWS_WITH(model->remake_replicas(), Catch::Contains(kOneAtATime));
  goes_on.add();
  const auto output = test::get_in_time(first, "the first thread's forward");
  CHECK_THAT(second, Catch::Contains(kOneAtATime));
  CHECK(close(output, net->forward(x)));
  CHECK(close(model->forward(x), net->forward(x)));
}

TEST_CASE("one device may be shared as the module may", "[dp]") {
  test::Counter inside;
  const auto net = lambda([&](auto& self, const Tensor& x) {
    inside.meet(2);
    return self.linear(x);
  });
  DataParallel model(net, on_cpus(1));
  const auto x = torch::ones({2, 3});
  auto other =
      std::async(std::launch::async, [&] { return model->forward(x); });
  const auto output = model->forward(x);
  CHECK(test::get_in_time(other, "the other forward").equal(output));
}

/// Returns the exit status of a child that runs `f`, which returns the status.
/// Fails if the child does not end.
template <typename F>
int status_in_child(const F& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(f());
  }
  int status = 0;
  if (!test::eventually(
          [&] { return ::waitpid(child, &status, WNOHANG) == child; })) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    FAIL("the child still runs");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_CASE("a process that was forked", "[dp]") {
  torch::nn::Linear net(3, 1);
  auto model = std::make_unique<DataParallel<torch::nn::Linear::ContainedType>>(
      net, on_cpus(2));
  const auto x = torch::randn({4, 3});
  const auto expected = net(x);
  SECTION("after a forward") {
    (*model)->forward(x);
    const int status = status_in_child([&] {
      try {
        (*model)->forward(x);
        return 1;
      } catch (const c10::Error& error) {
        const std::string what = error.what_without_backtrace();
        const bool is_clear =
            what.find("which was forked from it and has no threads") !=
            std::string::npos;
        model.reset();  // does not wait for a thread
        return is_clear ? 0 : 2;
      }
    });
    CHECK(status == 0);
  }
// ThreadSanitizer ends a forked process that starts threads.
#ifndef DDP_THREAD_SANITIZER
  SECTION("before any forward") {
    const int status = status_in_child([&] {
      at::set_num_threads(1);  // OpenMP's threads are not forked
      const bool is_right = close((*model)->forward(x), expected);
      model.reset();
      return is_right ? 0 : 1;
    });
    CHECK(status == 0);
  }
#endif
  CHECK(close((*model)->forward(x), expected));
}

TEST_CASE("a thread that cannot be started", "[dp]") {
  torch::nn::Linear net(3, 1);
  DataParallel model(net, on_cpus(3));
  const auto x = torch::randn({6, 3});
  {
    const ddp::test::NoMoreThreads none;
    CHECK_THROWS_WITH(
        model->forward(x),
        Catch::Contains(
            "Expected to start a thread for replica 0 of 3, but got"));
  }
  CHECK(close(model->forward(x), net(x)));
}

}  // namespace misuse_test
}  // namespace dp
