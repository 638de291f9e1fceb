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
#include <numeric>
#include <tuple>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "dp/servers/detail/session.h"
#include "dp/servers/detail/shard.h"
#include "test/dp/rank_order_backend.h"
#include "test/dp/server_ranks.h"
#include "test/support/random.h"

namespace dp {
namespace parameter_server_test {

using ddp::test::fill;
using ddp::test::random;
using test::run_ranks;
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
Tensors train_by_ddp(const c10::intrusive_ptr<c10d::Backend>& group,
                     int steps,
                     const OptimizerFactory& make_optimizer) {
  auto net = make_net(7);
  ddp::DistributedDataParallel model(
      net, ddp::DistributedDataParallelOptions().process_group(group));
  const auto optimizer = make_optimizer(net->parameters());
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    model->forward(random(1000 * (step + 1) + group->getRank(), {4, 6}))
        .pow(2)
        .mean()
        .backward();
    optimizer->step();
  }
  return copies(*net);
}

/// Returns the group of the ranks from `first` on, or null on the others.
c10::intrusive_ptr<c10d::Backend> group_from(int first) {
  std::vector<int> ranks(ddp::world_size() - first);
  std::iota(ranks.begin(), ranks.end(), first);
  return ddp::new_group(ranks);
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
  int workers = 0, servers = 0;
  bool use_adam = false;
  std::tie(workers, use_adam, servers) =
      GENERATE(table<int, bool, int>({{1, true, 1},
                                      {2, false, 1},
                                      {2, true, 2},
                                      {3, false, 2},
                                      {3, true, 1}}));
  constexpr int kSteps = 20;
  const OptimizerFactory make_optimizer = use_adam ? adam : sgd;
  run_ranks(servers + workers, [&](int rank) {
    const auto options = Options().servers(servers);
    auto net = make_net(rank == 0 ? 7 : 100 + rank);
    const auto group = group_from(servers);
    if (is_server(options)) {
      const auto report = serve(*net, make_optimizer, options);
      TORCH_CHECK(report.updates == kSteps);
      TORCH_CHECK(report.staleness == std::vector<int64_t>{kSteps});
      return;
    }
    // Gloo's ring starts each piece of a bucket at a different rank, so it adds
    // more than two gradients in another order than a server.
    const auto in_rank_order =
        train_by_ddp(c10::make_intrusive<test::RankOrderBackend>(group),
                     kSteps,
                     make_optimizer);
    const auto by_gloo = train_by_ddp(group, kSteps, make_optimizer);
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
  int servers = 0;
  int64_t bound = 0;
  std::tie(servers, bound) = GENERATE(table<int, int64_t>({{1, 0}, {2, 3}}));
  run_ranks(servers + 1, [&](int /*rank*/) {
    const auto options = Options()
                             .servers(servers)
                             .mode(UpdateMode::asynchronous)
                             .staleness_bound(bound);
    auto net = make_net(7);
    if (is_server(options)) {
      const auto report = serve(*net, sgd, options);
      TORCH_CHECK(report.staleness == std::vector<int64_t>{10});
      return;
    }
    auto plain = make_net(7);
    const auto optimizer = sgd(plain->parameters());
    for (int step = 0; step < 10; ++step) {
      optimizer->zero_grad();
      loss_of(plain, step, 0).backward();
      optimizer->step();
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
  int servers = 0;
  int64_t bound = 0;
  std::tie(bound, servers) =
      GENERATE(table<int64_t, int>({{0, 2}, {1, 1}, {4, 2}}));
  constexpr int kWorkers = 3;
  constexpr int kSteps = 30;
  run_ranks(servers + kWorkers, [&](int rank) {
    const auto options = Options()
                             .servers(servers)
                             .mode(UpdateMode::asynchronous)
                             .staleness_bound(bound);
    auto net = make_net(rank);
    if (is_server(options)) {
      const auto report = serve(*net, sgd, options);
      TORCH_CHECK(report.updates == kWorkers * kSteps);
      TORCH_CHECK(static_cast<int64_t>(report.staleness.size()) <= bound + 1);
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
    for (const auto& parameter : copies(*net)) {
      const auto last = ddp::all_gather(parameter.unsqueeze(0));
      for (int worker = 1; worker < kWorkers; ++worker) {
        TORCH_CHECK(last[servers + worker].equal(last[servers]));
      }
      // A server's module has the parameters that it held.
      TORCH_CHECK(
          std::any_of(last.begin(), last.begin() + servers, [&](auto& held) {
            return held.equal(last[servers]);
          }));
    }
  });
}

/// Parameters that count their updates, of more bytes than one read of a socket
/// brings.
struct CountersImpl : torch::nn::Module {
  CountersImpl() {
    first = register_parameter("first", torch::zeros({1'000'000}));
    second = register_parameter("second", torch::zeros({1'000'000}));
  }
  torch::Tensor first, second;
};
TORCH_MODULE(Counters);

std::unique_ptr<torch::optim::Optimizer> plain_sgd(const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 1.0);
}

TEST_CASE("asynchronous: a pull is one version, and the staleness is exact",
          "[parameter_server]") {
  const int64_t bound = GENERATE(1, 4);
  constexpr int kWorkers = 3;
  constexpr int kSteps = 15;
  run_ranks(1 + kWorkers, [&](int rank) {
    int64_t seen = 0;
    const auto options =
        Options()
            .mode(UpdateMode::asynchronous)
            .staleness_bound(bound)
            .before_update([&](const Update& update, auto& optimizer) {
              // The worker has passed the count of the parameters that it
              // computed from.
              TORCH_CHECK(update.number == seen++);
              TORCH_CHECK(update.loss == static_cast<double>(update.number -
                                                             update.staleness),
                          "an update after ",
                          update.number,
                          " others from parameters after ",
                          update.loss,
                          " has staleness ",
                          update.staleness);
              const auto& held = optimizer.param_groups()[0].params();
              TORCH_CHECK(held[0]
                              .eq(static_cast<double>(update.number))
                              .all()
                              .template item<bool>());
            });
    Counters net;
    if (is_server(options)) {
      TORCH_CHECK(serve(*net, plain_sgd, options).updates == kWorkers * kSteps);
      return;
    }
    ParameterClient client(net, options);
    for (int step = 0; step < kSteps; ++step) {
      client.pull();
      const double count = net->first[0].item<double>();
      TORCH_CHECK(count == static_cast<double>(client.version()));
      for (const auto& parameter : net->parameters()) {
        TORCH_CHECK(parameter.eq(count).all().item<bool>(),
                    "a pull of several versions: from ",
                    parameter.min().item<double>(),
                    " to ",
                    parameter.max().item<double>());
        parameter.mutable_grad() = torch::full_like(parameter, -1);
      }
      client.push(count);
    }
    client.finish();
    TORCH_CHECK(net->second.eq(kWorkers * kSteps).all().item<bool>(), rank);
  });
}

TEST_CASE("asynchronous: workers that pull again do not wait for each other",
          "[parameter_server]") {
  // With this bound a server gives parameters to a worker only if no other
  // worker holds any.
  constexpr int kServers = 2;
  constexpr int kWorkers = 2;
  constexpr int kSteps = 10;
  run_ranks(kServers + kWorkers, [&](int /*rank*/) {
    const auto options = Options()
                             .servers(kServers)
                             .mode(UpdateMode::asynchronous)
                             .staleness_bound(0);
    auto net = make_net(7);
    if (is_server(options)) {
      const auto report = serve(*net, sgd, options);
      TORCH_CHECK(report.staleness == std::vector<int64_t>{kWorkers * kSteps});
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
  run_ranks(servers + kWorkers, [&](int /*rank*/) {
    const auto options = Options().servers(servers);
    auto net = make_net(7);
    MovedBytes moved;
    if (is_server(options)) {
      moved = serve(*net, sgd, options).moved;
    } else {
      ParameterClient client(net, options);
      train(net, client, kSteps);
      client.finish();
      moved = client.moved();
    }
    const int64_t bytes = 4 * (6 * 9 + 9 + 9 * 4 + 4 + 4 * 2 + 2);
    const auto of_servers = ddp::reduce_tensor(
        is_server(options) ? torch::tensor({moved.sent, moved.received})
                           : torch::zeros({2}, torch::kLong),
        ddp::Reduction::sum);
    // finish() sends the parameters once more.
    TORCH_CHECK(of_servers[0].item<int64_t>() ==
                kWorkers * (kSteps + 1) * bytes);
    TORCH_CHECK(of_servers[1].item<int64_t>() == kWorkers * kSteps * bytes);
    if (!is_server(options)) {
      TORCH_CHECK(moved.received == (kSteps + 1) * bytes);
      TORCH_CHECK(moved.sent == kSteps * bytes);
    }
  });
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

TEST_CASE("any dtype; shared, frozen, unused parameters; buffers",
          "[parameter_server]") {
  const int servers = GENERATE(1, 3);
  run_ranks(servers + 2, [&](int rank) {
    const auto options = Options().servers(servers);
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
    net->complex.mutable_grad() =
        torch::full({2}, c10::complex<double>(0, mine), torch::kComplexFloat);
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
  run_ranks(3, [&](int /*rank*/) {
    const Options options;
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
  run_ranks(3, [&](int /*rank*/) {
    std::vector<Update> seen;
    const auto options =
        Options()
            .mode(is_synchronous ? UpdateMode::synchronous
                                 : UpdateMode::asynchronous)
            .before_update(
                [&](const Update& update, torch::optim::Optimizer& optimizer) {
                  TORCH_CHECK(
                      optimizer.param_groups()[0].params()[0].grad().defined());
                  optimizer.param_groups()[0].options().set_lr(0);
                  seen.push_back(update);
                });
    auto net = make_net(7);
    if (is_server(options)) {
      serve(*net, plain_sgd, options);
      TORCH_CHECK(seen.size() == (is_synchronous ? 3 : 6));
      for (size_t i = 0; i < seen.size(); ++i) {
        TORCH_CHECK(seen[i].number == static_cast<int64_t>(i));
        if (is_synchronous) {
          TORCH_CHECK(seen[i].worker == 0);
          TORCH_CHECK(seen[i].staleness == 0);
        }
      }
      if (is_synchronous) {
        TORCH_CHECK(std::isnan(seen[0].loss));
        TORCH_CHECK(seen[1].loss == 1.5);
        TORCH_CHECK(seen[2].loss == 2.5);
      }
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
}

TEST_CASE("sparse gradients arrive as dense ones", "[parameter_server]") {
  run_ranks(2, [&](int /*rank*/) {
    const Options options;
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
  run_ranks(3, [&](int /*rank*/) {
    const Options options;
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
  run_ranks(3, [&](int /*rank*/) {
    const Options options;
    for (int round = 0; round < 2; ++round) {
      Large net;
      if (is_server(options)) {
        serve(*net, sgd, options);
        continue;
      }
      ParameterClient client(net, options);
      {
        const torch::NoGradGuard no_grad;
        net->second.zero_();
      }
      client.finish();
      TORCH_CHECK(net->second.eq(1).all().item<bool>());
    }
  });
}

/// Waits until another rank has set a key of the job's store.
void wait_for_key(const std::string& key) {
  ddp::store()->wait({key}, test::kPatience);
}

TEST_CASE("synchronous: a worker takes from all servers at once",
          "[parameter_server]") {
  run_ranks(3, [&](int rank) {
    const auto options = Options().servers(2);
    Large net;
    if (rank == 2) {
      ParameterClient client(net, options);
      client.pull();
      client.finish();
      return;
    }
    const detail::Session session(*net, options);
    const detail::ShardMessage parameters(session.shards()[rank]);
    const auto expect = [&](detail::Request request) {
      const auto number = torch::zeros({1}, torch::kLong);
      session.wait(0, session.start(0, number, detail::Session::kWorker));
      TORCH_CHECK(number.item<int64_t>() == static_cast<int64_t>(request));
    };
    const auto give = [&] {
      session.wait(
          0, session.start(0, parameters.flat(), detail::Session::kServer));
    };
    expect(detail::Request::pull);
    if (rank == 0) {  // waits for server 1's parameters
      wait_for_key("given");
    }
    give();
    ddp::store()->set("given", "");
    expect(detail::Request::finish);
    give();
    expect(detail::Request::received);
  });
}

TEST_CASE("asynchronous: a worker that is slow blocks no other worker",
          "[parameter_server]") {
  constexpr int kSteps = 4;
  const bool is_in_message = GENERATE(false, true);
  run_ranks(3, [&](int rank) {
    const auto options =
        Options().mode(UpdateMode::asynchronous).staleness_bound(kSteps);
    auto net = make_net(7);
    if (is_server(options)) {
      const auto report = serve(*net, sgd, options);
      TORCH_CHECK(report.updates == kSteps + (is_in_message ? 0 : 1));
      TORCH_CHECK(report.lost.size() == (is_in_message ? 1 : 0));
      return;
    }
    if (rank == 1) {
      ParameterClient client(net, options);
      wait_for_key("slow");
      train(net, client, kSteps);
      ddp::store()->set("done", "");
      client.finish();
    } else if (is_in_message) {
      // Announces gradients and sends none.
      const detail::Session session(*net, options);
      const auto push = torch::full(
          {1}, static_cast<int64_t>(detail::Request::push), torch::kLong);
      session.wait(0, session.start(0, push, detail::Session::kWorker));
      ddp::store()->set("slow", "");
      wait_for_key("done");
    } else {
      // Computes from the first parameters until the other worker is done.
      ParameterClient client(net, options);
      client.pull();
      net->zero_grad();
      loss_of(net, 0, 1).backward();
      ddp::store()->set("slow", "");
      wait_for_key("done");
      client.push();
      client.finish();
    }
  });
}

}  // namespace parameter_server_test
}  // namespace dp
