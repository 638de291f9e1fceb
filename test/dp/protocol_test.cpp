// Workers that do not follow the protocol of ParameterClient.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <array>
#include <csignal>
#include <random>

#include "dp/parameter_server.h"
#include "dp/servers/detail/conversation.h"
#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/detail/protocol_state.h"
#include "dp/servers/detail/run_in_threads.h"
#include "dp/servers/detail/serve_workers.h"
#include "dp/servers/detail/session.h"
#include "test/dp/local_world.h"
#include "test/support/catch.h"

namespace dp {
namespace protocol_test {

using detail::Op;
using test::LocalWorld;
using Options = ParameterServerOptions;
using Tensors = std::vector<torch::Tensor>;

constexpr auto kSynchronous = UpdateMode::synchronous;
constexpr auto kAsynchronous = UpdateMode::asynchronous;

std::unique_ptr<torch::optim::Optimizer> sgd(const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
}

void train(torch::nn::Linear& net, ParameterClient& client, int steps) {
  for (int step = 0; step < steps; ++step) {
    client.pull();
    net->zero_grad();
    net->forward(torch::ones({2, 4})).sum().backward();
    client.push();
  }
}

/// A worker that sends arbitrary messages to one server.
class HandMadeWorker {
 public:
  HandMadeWorker(torch::nn::Module& module, const Options& options)
      : session_(detail::join_session(module, options, detail::Role::worker)),
        memory_(session_.shards[0]) {}

  detail::Link& link() { return *session_.links[0]; }

  /// Sends the message and receives the answer to it, if there is one.
  void say(
      Op op, const detail::OnWait& on_wait = [] {}) {
    if (op == Op::push) {
      const std::vector<int64_t> presence(session_.shards[0].size(), 1);
      detail::send_gradients(
          link(), 0, {.op = op, .numbers = presence}, memory_.flat(), on_wait);
    } else if (op == Op::pull || op == Op::last) {
      detail::request_parameters(link(), 0, op, memory_.flat(), on_wait);
    } else {
      link().send({.op = op});
    }
  }

 private:
  detail::Session session_;
  detail::FlatTensors memory_;
};

TEST_CASE("messages out of turn", "[protocol]") {
  const auto accept = [](const std::vector<Op>& ops) {
    detail::ProtocolState state;
    std::string problem;
    for (const Op op : ops) {
      CHECK(problem.empty());
      problem = state.accept(op);
    }
    return problem;
  };
  CHECK(accept({Op::wait,
                Op::pull,
                Op::push,
                Op::pull,
                Op::drop,
                Op::pull,
                Op::pull,
                Op::wait,
                Op::push,
                Op::leave,
                Op::last})
            .empty());
  CHECK(accept({Op::pull, Op::leave, Op::last, Op::failure}).empty());
  const std::string push = "a push without a pull before it";
  CHECK(accept({Op::push}) == push);
  CHECK(accept({Op::pull, Op::push, Op::push}) == push);
  CHECK(accept({Op::pull, Op::drop, Op::push}) == push);
  CHECK(accept({Op::pull, Op::leave, Op::push}) == push);
  CHECK(accept({Op::drop}) == "a drop without a pull before it");
  CHECK(accept({Op::leave, Op::pull}) == "a pull after it had left");
  CHECK(accept({Op::leave, Op::leave}) == "a second leave");
  const std::string last =
      "a request for the last parameters before it had left";
  CHECK(accept({Op::last}) == last);
  CHECK(accept({Op::leave, Op::last, Op::last}) == last);
  CHECK(accept({Op::parameters}) == "what a server sends");
  CHECK(accept({Op::received}) == "what a server sends");
}

TEST_CASE("a worker that pushes twice is refused", "[protocol][errors]") {
  const auto mode = GENERATE(kSynchronous, kAsynchronous);
  const std::string refusal =
      "Expected worker 1 (rank 2) to keep to the protocol, but got a push "
      "without a pull before it";
  const auto errors = LocalWorld(3).try_ranks(
      Options().mode(mode), [&](int rank, const Options& options) {
        torch::nn::Linear net(4, 3);
        if (rank == 0) {
          const auto report = serve(*net, sgd, options);
          TORCH_CHECK(report.lost == std::vector<int>{1});
        } else if (rank == 1) {
          ParameterClient client(net, options);
          train(net, client, 3);
          client.finish();
        } else {
          HandMadeWorker worker(*net, options);
          worker.say(Op::pull);
          worker.say(Op::push);
          worker.say(Op::push);
        }
      });
  CHECK_THAT(errors[0], Catch::Contains(mode == kSynchronous ? refusal : ""));
  CHECK_THAT(errors[1], Catch::Contains(mode == kSynchronous ? refusal : ""));
  CHECK(errors[0].empty() == (mode == kAsynchronous));
  CHECK(errors[1].empty() == (mode == kAsynchronous));
  CHECK_THAT(errors[2], Catch::Contains("parameter server 0 (rank 0) is gone"));
}

TEST_CASE("gradients that do not fit", "[protocol][errors]") {
  const auto presence = GENERATE(values<std::vector<int64_t>>({{1}, {1, 7}}));
  const auto errors =
      LocalWorld(2).try_ranks(Options(), [&](int rank, const Options& options) {
        torch::nn::Linear net(4, 3);
        if (rank == 0) {
          serve(*net, sgd, options);
          return;
        }
        HandMadeWorker worker(*net, options);
        worker.say(Op::pull);
        worker.link().send({.op = Op::push, .numbers = presence});
        worker.link().receive();
      });
  CHECK_THAT(errors[0],
             Catch::Contains(presence.size() == 1
                                 ? "but got gradients of 1 parameters, not of 2"
                                 : "but got a gradient that is neither"));
}

TEST_CASE("random messages harm nobody else", "[protocol][errors]") {
  constexpr int kSteps = 3;
  const std::vector<Op> ops{Op::pull,
                            Op::pull,
                            Op::push,
                            Op::push,
                            Op::drop,
                            Op::leave,
                            Op::last,
                            Op::wait,
                            Op::parameters,
                            Op::received};
  for (unsigned seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    const auto mode = seed % 2 == 0 ? kAsynchronous : kSynchronous;
    // Each variable is used by one rank's thread, until all ranks have ended.
    bool has_finished = false;
    std::vector<int> lost;
    const auto errors = LocalWorld(3).try_ranks(
        Options().mode(mode), [&](int rank, const Options& options) {
          torch::nn::Linear net(4, 3);
          if (rank == 0) {
            const auto report = serve(*net, sgd, options);
            lost = report.lost;
            TORCH_CHECK(report.updates >= kSteps);
          } else if (rank == 1) {
            ParameterClient client(net, options);
            train(net, client, kSteps);
            client.finish();
          } else {
            HandMadeWorker worker(*net, options);
            std::mt19937 random(seed);
            for (int i = 0; i < 8 && !has_finished; ++i) {
              const Op op = ops[random() % ops.size()];
              worker.say(op);
              has_finished = op == Op::last;
            }
          }
        });
    const bool is_well = errors[0].empty() && errors[1].empty();
    CHECK((is_well || mode == kSynchronous));
    if (is_well) {
      CHECK(lost.empty() == has_finished);
    }
    for (const int rank : {0, 1}) {  // the errors name worker 1
      CHECK_THAT(errors[rank], Catch::Contains(is_well ? "" : "worker 1"));
    }
  }
}

/// More bytes than the sockets' buffers hold.
constexpr int64_t kMany = 8 << 20;

TEST_CASE("asynchronous: workers that stop reading stop nobody else",
          "[protocol]") {
  constexpr int kStalled = 3;
  test::Counter pulled;
  test::Counter stalled;
  test::Counter finished;
  // The time-out exceeds the test, so that no stalled worker is dropped.
  const auto options = Options()
                           .mode(kAsynchronous)
                           .staleness_bound(1'000'000)
                           .timeout(2 * test::kPatience);
  const auto work = [&](int rank, const Options& own) {
    torch::nn::Linear net(kMany / 8, 8);
    if (rank == 0) {
      TORCH_CHECK(serve(*net, sgd, own).updates == 4);
      return;
    }
    if (rank == 1) {
      ParameterClient client(net, own);
      for (int step = 0; step < 4; ++step) {
        client.pull();
        // Each stalled worker gets newer parameters than the workers before it.
        pulled.add();
        stalled.wait_for(std::min(step + 1, kStalled));
        client.push();
      }
      finished.add();
      client.finish();
      return;
    }
    HandMadeWorker worker(*net, own);
    pulled.wait_for(rank - 1);
    worker.link().send({.op = Op::pull});
    TORCH_CHECK(worker.link().receive().op == Op::parameters);
    stalled.add();
    finished.wait_for(1);
  };
  const auto errors = LocalWorld(2 + kStalled).try_ranks(options, work);
  CHECK(errors == std::vector<std::string>(2 + kStalled));
}

TEST_CASE("a worker hears during a long hook that its server is there",
          "[protocol]") {
  test::Counter waits;
  LocalWorld(2).run_ranks(Options(), [&](int rank, const Options& options) {
    torch::nn::Linear net(4, 3);
    if (rank == 1) {
      HandMadeWorker worker(*net, options);
      worker.say(Op::pull);
      worker.say(Op::push);
      worker.say(Op::pull, [&] { waits.add(); });
      worker.say(Op::leave);
      worker.say(Op::last);
      return;
    }
    auto session = detail::join_session(*net, options, detail::Role::server);
    detail::Coordinator coordinator(
        detail::synchronous_updates({"worker 0"}), session.shards[0], 1, 4);
    detail::Shard shard(
        session.shards[0], sgd, [&](const Update&, torch::optim::Optimizer&) {
          waits.wait_for(5);
        });
    coordinator.serve(shard);
    detail::serve_workers(
        session.links, coordinator, std::chrono::milliseconds(1));
    TORCH_CHECK(coordinator.failure().empty(), coordinator.failure());
    TORCH_CHECK(coordinator.report().updates == 1);
  });
}

TEST_CASE("a server's own error is not taken for a worker's death",
          "[protocol][errors]") {
  const auto errors =
      LocalWorld(2).try_ranks(Options(), [&](int rank, const Options& options) {
        torch::nn::Linear net(4, 3);
        if (rank == 1) {
          ParameterClient client(net, options);
          train(net, client, 2);
          return;
        }
        auto session =
            detail::join_session(*net, options, detail::Role::server);
        // Memory for gradients of this size cannot be allocated.
        Tensors huge(session.shards[0].size(),
                     torch::zeros({1}).expand({int64_t{1} << 56}));
        detail::Coordinator coordinator(
            detail::asynchronous_updates({"worker 0"}, 0), huge, 1, 4);
        detail::Shard shard(session.shards[0], sgd, nullptr);
        coordinator.serve(shard);
        detail::serve_workers(session.links, coordinator, test::kPatience);
        TORCH_CHECK(coordinator.report().lost.empty());
        TORCH_CHECK(false, "the server: ", coordinator.failure());
      });
  CHECK_THAT(errors[0],
             Catch::Contains("the server: ") && !Catch::Contains("worker 0"));
  REQUIRE(errors[0].size() > std::string("the server: ").size());
  CHECK_THAT(errors[1], Catch::Contains(errors[0].substr(12)));
}

TEST_CASE("threads of several talks leave signals to the program's",
          "[protocol]") {
  std::array<sigset_t, 3> blocked{};
  detail::run_in_threads(blocked.size(), [&](size_t i) {
    TORCH_CHECK(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked.at(i)) == 0);
  });
  // The first runs on the calling thread.
  CHECK_FALSE(::sigismember(&blocked[0], SIGTERM));
  CHECK(::sigismember(&blocked[1], SIGTERM));
  CHECK(::sigismember(&blocked[2], SIGTERM));
}

}  // namespace protocol_test
}  // namespace dp
