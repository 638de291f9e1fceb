#include "dp/parameter_server.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "ddp/distributed_data_parallel.h"
#include "dp/servers/detail/conversation.h"
#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/detail/serve_workers.h"
#include "dp/servers/detail/session.h"
#include "test/dp/local_world.h"
#include "test/dp/rank_order_backend.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/random.h"

namespace dp {
namespace parameter_server_test {

using ddp::test::fill;
using ddp::test::random;
using test::LocalWorld;
using Options = ParameterServerOptions;
using Tensors = std::vector<torch::Tensor>;

torch::nn::Sequential make_net(int64_t seed) {
  torch::nn::Sequential net(torch::nn::Linear(6, 9),
                            torch::nn::Tanh(),
                            torch::nn::Linear(9, 4),
                            torch::nn::Tanh(),
                            torch::nn::Linear(4, 2));
  fill(*net, seed);
  return net;
}

std::unique_ptr<torch::optim::Optimizer> sgd(const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

std::unique_ptr<torch::optim::Optimizer> adam(const Tensors& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, 0.01);
}

torch::Tensor loss_of(torch::nn::Sequential& net, int step, int worker) {
  return net->forward(random(1000 * (step + 1) + worker, {4, 6})).pow(2).mean();
}

/// Trains one worker with its own batches.
void train(torch::nn::Sequential& net, ParameterClient& client, int steps) {
  for (int step = 0; step < steps; ++step) {
    client.pull();
    net->zero_grad();
    const auto loss = loss_of(net, step, client.worker());
    loss.backward();
    client.push(loss.item<double>());
  }
}

Tensors copies(const torch::nn::Module& module) {
  Tensors result;
  for (const auto& parameter : module.parameters()) {
    result.push_back(parameter.detach().clone());
  }
  return result;
}

/// Returns the parameters after the same training with DistributedDataParallel.
/// `wrap` returns its backend, given Gloo's.
using Wrap = std::function<ddp::test::Group(const ddp::test::Group&)>;
Tensors train_by_ddp(int ranks,
                     int steps,
                     const OptimizerFactory& make_optimizer,
                     const Wrap& wrap) {
  Tensors result;
  ddp::test::run_ranks(ranks, [&](const ddp::test::Group& group) {
    auto net = make_net(7);
    ddp::DistributedDataParallel model(
        net, ddp::DistributedDataParallelOptions().process_group(wrap(group)));
    const auto optimizer = make_optimizer(net->parameters());
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      model->forward(random(1000 * (step + 1) + group->getRank(), {4, 6}))
          .pow(2)
          .mean()
          .backward();
      optimizer->step();
    }
    if (group->getRank() == 0) {
      result = copies(*net);
    }
  });
  return result;
}

/// Returns the relative difference of all parameters together.
double relative_difference(const Tensors& a, const Tensors& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto exact = b[i].to(torch::kDouble);
    difference += (a[i] - exact).pow(2).sum().item<double>();
    size += exact.pow(2).sum().item<double>();
  }
  return std::sqrt(difference / size);
}

bool equal(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), at::equal);
}

TEST_CASE("synchronous training is DistributedDataParallel's",
          "[parameter_server]") {
  const int workers = GENERATE(1, 2, 3);
  const bool use_adam = GENERATE(false, true);
  const int servers = GENERATE(1, 2);
  constexpr int kSteps = 20;
  const OptimizerFactory make_optimizer = use_adam ? adam : sgd;
  // Gloo's ring starts each piece of a bucket at a different rank, so it adds
  // more than two gradients in another order than a server.
  const auto in_rank_order =
      train_by_ddp(workers, kSteps, make_optimizer, [](const auto& group) {
        return c10::make_intrusive<test::RankOrderBackend>(group);
      });
  const auto by_gloo = train_by_ddp(
      workers, kSteps, make_optimizer, [](const auto& group) { return group; });
  LocalWorld world(servers + workers);
  // With room for one gradient per server, workers have to push in their order.
  const int held = workers == 3 ? servers : 4;
  world.run_ranks(
      Options().servers(servers).gradients_held(held),
      [&](int rank, const Options& options) {
        auto net = make_net(rank == 0 ? 7 : 100 + rank);
        if (is_server(options)) {
          const auto report = serve(*net, make_optimizer, options);
          TORCH_CHECK(report.updates == kSteps);
          TORCH_CHECK(report.staleness == std::vector<int64_t>{kSteps});
          return;
        }
        ParameterClient client(net, options);
        train(net, client, kSteps);
        client.finish();
        TORCH_CHECK(client.version() == kSteps);
        const auto trained = copies(*net);
        TORCH_CHECK(equal(trained, in_rank_order));
        TORCH_CHECK(workers > 2 || equal(trained, by_gloo));
        const double difference = relative_difference(trained, by_gloo);
        TORCH_CHECK(difference <= 1e-6, difference);
      });
}

TEST_CASE("one asynchronous worker trains as a plain program",
          "[parameter_server]") {
  const int servers = GENERATE(1, 2);
  const int64_t bound = GENERATE(0, 3);
  auto plain = make_net(7);
  const auto optimizer = sgd(plain->parameters());
  for (int step = 0; step < 10; ++step) {
    optimizer->zero_grad();
    loss_of(plain, step, 0).backward();
    optimizer->step();
  }
  LocalWorld world(servers + 1);
  world.run_ranks(
      Options()
          .servers(servers)
          .mode(UpdateMode::asynchronous)
          .staleness_bound(bound),
      [&](int rank, const Options& options) {
        auto net = make_net(7);
        if (is_server(options)) {
          const auto report = serve(*net, sgd, options);
          TORCH_CHECK(report.staleness == std::vector<int64_t>{10});
          return;
        }
        ParameterClient client(net, options);
        train(net, client, 10);
        client.finish();
        for (size_t i = 0; i < net->parameters().size(); ++i) {
          TORCH_CHECK(net->parameters()[i].equal(plain->parameters()[i]));
        }
      });
}

TEST_CASE("asynchronous: staleness keeps its bound, all end alike",
          "[parameter_server]") {
  const int64_t bound = GENERATE(0, 1, 4);
  const int servers = GENERATE(1, 2);
  constexpr int kWorkers = 3;
  constexpr int kSteps = 30;
  std::vector<Tensors> last(servers + kWorkers);
  LocalWorld world(servers + kWorkers);
  world.run_ranks(
      Options()
          .servers(servers)
          .mode(UpdateMode::asynchronous)
          .staleness_bound(bound)
          .gradients_held(servers),
      [&](int rank, const Options& options) {
        auto net = make_net(rank);
        if (is_server(options)) {
          const auto report = serve(*net, sgd, options);
          TORCH_CHECK(report.updates == kWorkers * kSteps);
          TORCH_CHECK(static_cast<int64_t>(report.staleness.size()) <=
                      bound + 1);
          TORCH_CHECK(std::accumulate(report.staleness.begin(),
                                      report.staleness.end(),
                                      int64_t{0}) == report.updates);
          TORCH_CHECK(report.lost.empty());
        } else {
          ParameterClient client(net, options);
          train(net, client, kSteps);
          client.finish();
          TORCH_CHECK(client.version() == kWorkers * kSteps);
        }
        last[rank] = copies(*net);
      });
  for (size_t i = 0; i < last[servers].size(); ++i) {
    for (int worker = 1; worker < kWorkers; ++worker) {
      CHECK(last[servers + worker][i].equal(last[servers][i]));
    }
    // A server's module has the parameters that it held.
    CHECK(std::any_of(last.begin(), last.begin() + servers, [&](auto& held) {
      return held[i].equal(last[servers][i]);
    }));
  }
}

TEST_CASE("asynchronous: workers that pull again do not wait for each other",
          "[parameter_server]") {
  // With this bound a server gives parameters to a worker only if no other
  // worker holds any.
  constexpr int kServers = 2;
  constexpr int kWorkers = 2;
  constexpr int kSteps = 10;
  LocalWorld(kServers + kWorkers)
      .run_ranks(Options()
                     .servers(kServers)
                     .mode(UpdateMode::asynchronous)
                     .staleness_bound(0),
                 [&](int /*rank*/, const Options& options) {
                   auto net = make_net(7);
                   if (is_server(options)) {
                     const auto report = serve(*net, sgd, options);
                     TORCH_CHECK(report.staleness ==
                                 std::vector<int64_t>{kWorkers * kSteps});
                     return;
                   }
                   ParameterClient client(net, options);
                   for (int step = 0; step < kSteps; ++step) {
                     client.pull();
                     train(net, client, 1);
                   }
                   client.finish();
                 });
}

TEST_CASE("what moves is what the formula says", "[parameter_server]") {
  const int servers = GENERATE(1, 2);
  constexpr int kWorkers = 3;
  constexpr int kSteps = 5;
  std::vector<MovedBytes> moved(servers + kWorkers);
  LocalWorld world(servers + kWorkers);
  world.run_ranks(Options().servers(servers),
                  [&](int rank, const Options& options) {
                    auto net = make_net(7);
                    if (is_server(options)) {
                      moved[rank] = serve(*net, sgd, options).moved;
                      return;
                    }
                    ParameterClient client(net, options);
                    train(net, client, kSteps);
                    client.finish();
                    moved[rank] = client.moved();
                  });
  const int64_t bytes = 4 * (6 * 9 + 9 + 9 * 4 + 4 + 4 * 2 + 2);
  MovedBytes all;
  for (int server = 0; server < servers; ++server) {
    all.sent += moved[server].sent;
    all.received += moved[server].received;
  }
  // finish() sends the parameters once more.
  CHECK(all.sent == kWorkers * (kSteps + 1) * bytes);
  CHECK(all.received == kWorkers * kSteps * bytes);
  for (int worker = 0; worker < kWorkers; ++worker) {
    CHECK(moved[servers + worker].received == (kSteps + 1) * bytes);
    CHECK(moved[servers + worker].sent == kSteps * bytes);
  }
}

struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    shared = register_parameter("shared", torch::zeros({3}));
    register_parameter("again", shared);
    frozen = register_parameter("frozen", torch::zeros({2}), false);
    unused = register_parameter("unused", torch::zeros({2}));
    sometimes = register_parameter("sometimes", torch::zeros({2}));
    half = register_parameter("half", torch::zeros({5}, torch::kHalf));
    wide = register_parameter("wide", torch::zeros({1, 2}, torch::kDouble));
    complex =
        register_parameter("complex", torch::zeros({2}, torch::kComplexFloat));
    buffer = register_buffer("buffer", torch::zeros({2}, torch::kLong));
  }
  torch::Tensor shared, frozen, unused, sometimes, half, wide, complex, buffer;
};
TORCH_MODULE(OddNet);

std::unique_ptr<torch::optim::Optimizer> plain_sgd(const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 1.0);
}

TEST_CASE("any dtype; shared, frozen, unused parameters; buffers",
          "[parameter_server]") {
  const int servers = GENERATE(1, 3);
  LocalWorld world(servers + 2);
  world.run_ranks(
      Options().servers(servers), [&](int rank, const Options& options) {
        OddNet net;
        {
          const torch::NoGradGuard no_grad;
          for (auto& parameter : net->parameters()) {
            parameter.fill_(rank + 1);
          }
          net->buffer.fill_(rank + 5);
        }
        if (is_server(options)) {
          size_t held = 0;
          serve(
              *net,
              [&](const Tensors& parameters) {
                held = parameters.size();
                // Weight decay would reveal a step for a parameter without
                // gradient.
                return std::make_unique<torch::optim::SGD>(
                    parameters, torch::optim::SGDOptions(1).weight_decay(1));
              },
              options);
          TORCH_CHECK(servers > 1 || held == 6);
          return;
        }
        ParameterClient client(net, options);
        TORCH_CHECK(net->buffer.eq(5).all().item<bool>());
        TORCH_CHECK(net->frozen.eq(1).all().item<bool>());
        client.pull();
        const double mine = client.worker() + 1;  // mean 1.5
        net->shared.mutable_grad() = torch::full({3}, mine);
        net->frozen.mutable_grad() = torch::full({2}, mine);
        net->half.mutable_grad() = torch::full({5}, mine, torch::kHalf);
        net->wide.mutable_grad() = torch::full({1, 2}, mine, torch::kDouble);
        net->complex.mutable_grad() = torch::full(
            {2}, c10::complex<double>(0, mine), torch::kComplexFloat);
        if (client.worker() == 1) {
          net->sometimes.mutable_grad() = torch::full({2}, mine);
        }
        client.push();
        net->buffer.fill_(50 + rank);
        client.finish();
        // value 1 - (mean gradient + decay of 1)
        TORCH_CHECK(net->shared.eq(-1.5).all().item<bool>());
        TORCH_CHECK(net->frozen.eq(1).all().item<bool>());
        TORCH_CHECK(net->unused.eq(1).all().item<bool>());
        TORCH_CHECK(net->sometimes.eq(-1).all().item<bool>());
        TORCH_CHECK(net->half.eq(-1.5).all().item<bool>());
        TORCH_CHECK(net->wide.eq(-1.5).all().item<bool>());
        TORCH_CHECK(
            net->complex.eq(c10::complex<double>(0, -1.5)).all().item<bool>());
        TORCH_CHECK(net->buffer.eq(50 + rank).all().item<bool>());
        TORCH_CHECK(net->shared.requires_grad());
      });
}

TEST_CASE("a gradient that is no more counts as zero", "[parameter_server]") {
  LocalWorld world(3);
  world.run_ranks(Options(), [&](int rank, const Options& options) {
    torch::nn::Linear net(2, 1);
    {
      const torch::NoGradGuard no_grad;
      net->weight.zero_();
    }
    if (is_server(options)) {
      serve(*net, plain_sgd, options);
      return;
    }
    ParameterClient client(net, options);
    for (int step = 0; step < 2; ++step) {
      client.pull();
      net->zero_grad();
      if (step == 0 || client.worker() == 1) {
        net->weight.mutable_grad() = torch::full({1, 2}, 2.0);
      }
      client.push();
    }
    client.finish();
    // The mean of 2 and 2, then the mean of 0 and 2.
    TORCH_CHECK(net->weight.eq(-3).all().item<bool>(), net->weight);
  });
}

TEST_CASE("the hook sees each update before it", "[parameter_server]") {
  const bool is_synchronous = GENERATE(true, false);
  std::vector<Update> seen;
  LocalWorld world(3);
  world.run_ranks(
      Options()
          .mode(is_synchronous ? UpdateMode::synchronous
                               : UpdateMode::asynchronous)
          .before_update(
              [&](const Update& update, torch::optim::Optimizer& optimizer) {
                TORCH_CHECK(
                    optimizer.param_groups()[0].params()[0].grad().defined());
                optimizer.param_groups()[0].options().set_lr(0);
                seen.push_back(update);
              }),
      [&](int rank, const Options& options) {
        auto net = make_net(7);
        if (is_server(options)) {
          serve(*net, plain_sgd, options);
          return;
        }
        ParameterClient client(net, options);
        for (int step = 0; step < 3; ++step) {
          client.pull();
          net->zero_grad();
          loss_of(net, step, client.worker()).backward();
          if (client.worker() == 0 || step > 0) {
            client.push(step + client.worker());
          } else {
            client.push();
          }
        }
        client.finish();
        TORCH_CHECK(net->parameters()[0].equal(make_net(7)->parameters()[0]),
                    "the learning rate was not 0");
      });
  CHECK(seen.size() == (is_synchronous ? 3 : 6));
  for (size_t i = 0; i < seen.size(); ++i) {
    CHECK(seen[i].number == static_cast<int64_t>(i));
    if (is_synchronous) {
      CHECK(seen[i].worker == 0);
      CHECK(seen[i].staleness == 0);
    }
  }
  if (is_synchronous) {
    CHECK(std::isnan(seen[0].loss));
    CHECK(seen[1].loss == 1.5);
    CHECK(seen[2].loss == 2.5);
  }
}

TEST_CASE("sparse gradients arrive as dense ones", "[parameter_server]") {
  LocalWorld(2).run_ranks(Options(), [&](int /*rank*/, const Options& options) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    if (is_server(options)) {
      serve(*table, plain_sgd, options);
      return;
    }
    ParameterClient client(table, options);
    client.pull();
    const auto before = table->weight.detach().clone();
    table->forward(torch::tensor({3, 1, 3})).sum().backward();
    TORCH_CHECK(table->weight.grad().is_sparse());
    client.push();
    client.finish();
    const auto counts = torch::tensor({0, 1, 0, 2, 0}).unsqueeze(1);
    TORCH_CHECK(table->weight.equal(before - counts));
  });
}

TEST_CASE("servers can be used again", "[parameter_server]") {
  LocalWorld world(3);
  world.run_ranks(Options(), [&](int rank, const Options& options) {
    auto net = make_net(7);
    for (int round = 0; round < 3; ++round) {
      if (is_server(options)) {
        TORCH_CHECK(serve(*net, sgd, options).updates == round + 1);
      } else {
        ParameterClient client(net, options);
        train(net, client, round + 1);
        client.finish();
      }
    }
  });
}

/// Two parameters, one for each of two servers, each larger than the sockets'
/// buffers.
struct LargeImpl : torch::nn::Module {
  LargeImpl() {
    constexpr int64_t kSize = 3'000'000;  // 12 MB
    first = register_parameter("first", torch::ones({kSize}));
    second = register_parameter("second", torch::ones({kSize}));
  }
  torch::Tensor first, second;
};
TORCH_MODULE(Large);

TEST_CASE("the last parameters arrive whole, however large",
          "[parameter_server]") {
  LocalWorld world(3);
  for (int round = 0; round < 2; ++round) {
    world.run_ranks(Options(), [&](int rank, const Options& options) {
      Large net;
      if (is_server(options)) {
        serve(*net, sgd, options);
        return;
      }
      ParameterClient client(net, options);
      {
        const torch::NoGradGuard no_grad;
        net->second.zero_();
      }
      client.finish();
      TORCH_CHECK(net->second.eq(1).all().item<bool>());
    });
  }
}

/// Requests the last parameters from a server that this worker has left, and
/// waits for them. Calls `on_wait` for each message that announces a longer
/// wait.
template <typename OnWait>
void take_last_parameters(detail::Link& server,
                          const Tensors& shard,
                          const OnWait& on_wait) {
  detail::request_parameters(
      server, 0, detail::Op::last, detail::FlatTensors(shard).flat(), on_wait);
}

/// Like `serve`, asynchronous with a bound of 1, but sends a wait message every
/// millisecond: as many as `serve` sends in hours.
ServerReport serve_impatiently(torch::nn::Module& module,
                               const Options& options) {
  auto session = detail::join_session(module, options, detail::Role::server);
  const auto& shard =
      session.shards[static_cast<size_t>(session.topology.rank)];
  const auto workers = static_cast<size_t>(session.topology.workers());
  detail::Coordinator coordinator(
      detail::asynchronous_updates(std::vector<std::string>(workers), 1),
      shard,
      session.topology.workers(),
      options.gradients_held());
  detail::Shard parameters(shard, sgd, nullptr);
  coordinator.serve(parameters);
  detail::serve_workers(
      session.links, coordinator, std::chrono::milliseconds(1));
  TORCH_CHECK(coordinator.failure().empty(), coordinator.failure());
  return coordinator.report();
}

TEST_CASE("a finish that waits for long is no silence", "[parameter_server]") {
  const int servers = GENERATE(1, 2);
  constexpr int kSteps = 6;
  test::Counter waits;
  LocalWorld world(servers + 3);
  world.run_ranks(
      Options()
          .servers(servers)
          .mode(UpdateMode::asynchronous)
          .staleness_bound(1),
      [&](int rank, const Options& options) {
        auto net = make_net(7);
        if (is_server(options)) {
          const auto report = serve_impatiently(*net, options);
          TORCH_CHECK(report.lost.empty());
          TORCH_CHECK(report.updates == kSteps);
        } else if (rank == servers) {
          // A worker that leaves at once and counts the wait messages that it
          // receives.
          const auto session =
              detail::join_session(*net, options, detail::Role::worker);
          const auto& links = session.links;
          for (const auto& link : links) {
            link->send({.op = detail::Op::leave});
          }
          for (size_t i = 0; i < links.size(); ++i) {
            take_last_parameters(*links[i], session.shards[i], [&] {
              waits.add();
              for (size_t other = i + 1; other < links.size(); ++other) {
                links[other]->send({.op = detail::Op::wait});
              }
            });
          }
        } else if (rank == servers + 1) {
          // A worker that computes for longer than many wait messages take.
          ParameterClient client(net, options);
          for (int step = 0; step < kSteps; ++step) {
            train(net, client, 1);
            waits.wait_for(5 * (step + 1));
          }
          client.finish();
        } else {
          ParameterClient client(net, options);
          client.pull();
          client.finish();
        }
      });
}

/// Acts as a server: joins, and passes its only worker to `talk`.
template <typename Talk>
void serve_by_hand(torch::nn::Module& module,
                   const Options& options,
                   const Talk& talk) {
  const auto session =
      detail::join_session(module, options, detail::Role::server);
  auto& worker = *session.links[0];
  const detail::FlatTensors parameters(
      session.shards[static_cast<size_t>(session.topology.rank)]);
  const auto expect = [&](detail::Op request) {
    TORCH_CHECK(worker.receive().op == request);
  };
  const auto give = [&] {
    for (const auto& piece : detail::pieces_of(parameters.flat())) {
      worker.send({.op = detail::Op::parameters}, piece);
    }
  };
  talk(worker, expect, give);
  expect(detail::Op::leave);
  expect(detail::Op::last);
  give();
}

TEST_CASE("synchronous: a worker takes from all servers at once",
          "[parameter_server]") {
  test::Counter given;
  LocalWorld world(3);
  world.run_ranks(Options().servers(2), [&](int rank, const Options& options) {
    Large net;
    if (rank == 2) {
      ParameterClient client(net, options);
      client.pull();
      client.finish();
      return;
    }
    serve_by_hand(*net, options, [&](auto&, auto expect, auto give) {
      expect(detail::Op::pull);
      if (rank == 0) {  // waits for server 1's parameters
        given.wait_for(1);
      }
      give();
      given.add();
    });
  });
}

TEST_CASE("synchronous: a wait for one server is no silence to another",
          "[parameter_server]") {
  test::Counter waits;
  LocalWorld world(3);
  world.run_ranks(Options().servers(2), [&](int rank, const Options& options) {
    auto net = make_net(7);
    if (rank == 2) {
      ParameterClient client(net, options);
      client.pull();
      client.finish();
      return;
    }
    auto session = detail::join_session(*net, options, detail::Role::server);
    auto& worker = *session.links[0];
    const auto give = [&] {
      worker.send({.op = detail::Op::parameters},
                  detail::FlatTensors(session.shards[rank]).flat());
    };
    TORCH_CHECK(worker.receive().op == detail::Op::pull);
    if (rank == 0) {  // until the other server knows
      while (!waits.has(1)) {
        worker.send({.op = detail::Op::wait});
      }
    }
    give();
    auto request = worker.receive();
    for (; request.op == detail::Op::wait; request = worker.receive()) {
      waits.add();
    }
    TORCH_CHECK(request.op == detail::Op::leave);
    TORCH_CHECK(worker.receive().op == detail::Op::last);
    give();
  });
}

TEST_CASE("asynchronous: a wait for one server is no silence to another",
          "[parameter_server]") {
  constexpr int kWaits = 8;
  LocalWorld world(3);
  world.run_ranks(
      Options().servers(2).mode(UpdateMode::asynchronous),
      [&](int rank, const Options& options) {
        auto net = make_net(7);
        if (rank == 2) {
          ParameterClient client(net, options);
          client.pull();
          client.finish();
          return;
        }
        // Server 0 takes long for its first answer.
        serve_by_hand(*net, options, [&](auto& worker, auto expect, auto give) {
          for (int i = 0; rank == 1 && i < kWaits; ++i) {
            expect(detail::Op::wait);
          }
          expect(detail::Op::pull);
          for (int i = 0; rank == 0 && i < kWaits; ++i) {
            worker.send({.op = detail::Op::wait});
          }
          give();
        });
      });
}

}  // namespace parameter_server_test
}  // namespace dp
