#include "dp/push_in_backward.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <iterator>
#include <memory>
#include <optional>
#include <tuple>

#include "dp/detail/parameter_server/flat_tensors.h"
#include "dp/detail/parameter_server/parts/held_gradients.h"
#include "dp/detail/parameter_server/session.h"
#include "test/dp/local_world.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace dp {
namespace push_in_backward_test {

using ddp::test::fill;
using ddp::test::random;
using test::LocalWorld;
using Options = ParameterServerOptions;
using Tensors = std::vector<torch::Tensor>;

std::unique_ptr<torch::optim::Optimizer> sgd(const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
}

/// Calls a function in the backward pass between the layers.
struct Between : torch::autograd::Function<Between> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x,
                               const std::function<void()>& call) {
    context->saved_data["call"] =
        reinterpret_cast<int64_t>(static_cast<const void*>(&call));
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    (*reinterpret_cast<const std::function<void()>*>(
        context->saved_data["call"].toInt()))();
    return {gradients[0], torch::Tensor()};
  }
};

/// A table with sparse gradients, two layers and a parameter without gradient.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    table = register_module(
        "table",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 5).sparse(true)));
    first = register_module("first", torch::nn::Linear(5, 4));
    last = register_module("last", torch::nn::Linear(4, 3));
    unused = register_parameter("unused", torch::zeros({2}));
    fill(*this, 7);
  }
  torch::Tensor loss(int64_t step, int worker) {
    const auto rows = torch::arange(step, step + 3);
    const auto x = table->forward(rows) * (worker + 1);
    const auto middle = Between::apply(torch::tanh(first->forward(x)), between);
    return (last->forward(middle) + random(100 * step + worker, {3, 3}))
        .pow(2)
        .mean();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::Tensor unused;
  std::function<void()> between = [] {};
};
TORCH_MODULE(Net);

enum class Step { plain, added_up, clipped, without_one, thrown, thrown_on };

/// One step's gradients, in ways that all end in some `.grad`s.
void backward(Net& net, ParameterClient& client, Step way, int64_t step) {
  const auto pass = [&] { net->loss(step, client.worker()).backward(); };
  const auto broken_pass = [&] {
    net->between = [] { TORCH_CHECK(false, "half-way"); };
    bool has_thrown = false;
    try {
      pass();
    } catch (const c10::Error&) {
      has_thrown = true;
    }
    TORCH_CHECK(has_thrown);
    net->between = [] {};
  };
  switch (way) {
    case Step::plain:
      pass();
      break;
    case Step::added_up:
      pass();
      net->loss(step + 1, client.worker()).backward();
      break;
    case Step::clipped:
      pass();
      net->last->weight.grad().data().mul_(0.5);  // as clip_grad_norm_ does
      break;
    case Step::without_one:
      pass();
      net->last->bias.mutable_grad() = torch::Tensor();
      break;
    case Step::thrown:
      broken_pass();
      client.pull();
      net->zero_grad();
      pass();
      break;
    case Step::thrown_on:
      broken_pass();
      pass();
      break;
  }
}

constexpr Step kWays[] = {Step::plain,
                          Step::added_up,
                          Step::clipped,
                          Step::without_one,
                          Step::thrown,
                          Step::thrown_on,
                          Step::plain};

/// What worker 0 has after each step.
std::vector<Tensors> train(const Options& of_job,
                           int workers,
                           bool in_backward) {
  std::vector<Tensors> result;
  LocalWorld world(of_job.servers() + workers);
  world.run_ranks(of_job, [&](int /*rank*/, const Options& options) {
    Net net;
    if (is_server(options)) {
      serve(*net, sgd, options);
      return;
    }
    ParameterClient client(net, options);
    std::optional<PushInBackwardGuard> guard;
    if (in_backward) {
      guard.emplace(client);
    }
    const auto note = [&] {
      if (client.worker() == 0) {
        auto& now = result.emplace_back();
        for (const auto& parameter : net->parameters()) {
          now.push_back(parameter.detach().clone());
        }
      }
    };
    int64_t step = 0;
    for (const auto way : kWays) {
      client.pull();
      note();
      net->zero_grad();
      backward(net, client, way, step++ % 5);
      client.push();
    }
    client.finish();
    note();
  });
  return result;
}

TEST_CASE("gradients that set out in backward train as others, bit for bit",
          "[push_in_backward]") {
  const auto [servers, is_synchronous] = GENERATE(table<int, bool>(
      {std::tuple{2, true}, std::tuple{1, false}, std::tuple{2, false}}));
  const auto options = Options()
                           .servers(servers)
                           .gradients_held(is_synchronous ? servers : 4)
                           .mode(is_synchronous ? UpdateMode::synchronous
                                                : UpdateMode::asynchronous);
  const int workers = is_synchronous ? 3 : 1;
  const auto plain = train(options, workers, false);
  const auto early = train(options, workers, true);
  REQUIRE(plain.size() == std::size(kWays) + 1);
  REQUIRE(early.size() == plain.size());
  for (size_t step = 0; step < plain.size(); ++step) {
    CAPTURE(step);
    for (size_t i = 0; i < plain[step].size(); ++i) {
      CHECK(early[step][i].equal(plain[step][i]));
    }
  }
}

TEST_CASE("asynchronous workers push in backward within the bound",
          "[push_in_backward]") {
  const int64_t bound = GENERATE(0, 4);
  constexpr int kServers = 2;
  constexpr int kWorkers = 3;
  constexpr int kSteps = 9;
  LocalWorld world(kServers + kWorkers);
  world.run_ranks(
      Options()
          .servers(kServers)
          .mode(UpdateMode::asynchronous)
          .staleness_bound(bound)
          .gradients_held(kServers),
      [&](int /*rank*/, const Options& options) {
        Net net;
        if (is_server(options)) {
          const auto report = serve(*net, sgd, options);
          TORCH_CHECK(report.updates == kWorkers * kSteps);
          TORCH_CHECK(static_cast<int64_t>(report.staleness.size()) <=
                      bound + 1);
          return;
        }
        ParameterClient client(net, options);
        const PushInBackwardGuard in_backward(client);
        for (int step = 0; step < kSteps; ++step) {
          client.pull();
          net->zero_grad();
          backward(net,
                   client,
                   step % 3 == client.worker() ? Step::thrown : Step::plain,
                   step % 4);
          client.push();
        }
        client.finish();
      });
}

/// A server by hand gives parameters.
void answer_pull(detail::Link& link, const Tensors& parameters) {
  TORCH_CHECK(link.receive().op == detail::Op::pull);
  const detail::FlatTensors memory(parameters);
  link.send({.op = detail::Op::parameters}, memory.flat());
}

torch::Tensor receive_part(detail::Link& link,
                           const Tensors& parameters,
                           int64_t& which) {
  const auto part = link.receive();
  TORCH_CHECK(part.op == detail::Op::part && part.numbers.size() == 1);
  which = part.numbers[0];
  const detail::FlatTensors memory({parameters.at(which)});
  link.send({.op = detail::Op::go});
  link.receive_payload(memory.flat());
  return memory.pieces()[0];
}

TEST_CASE("a server has the last layer's gradients in mid-backward",
          "[push_in_backward]") {
  test::Counter received;
  LocalWorld world(2);
  world.run_ranks(Options(), [&](int rank, const Options& options) {
    // All parameters are zero from the pull on, so the loss is that of its
    // random target.
    Net net;
    const auto target = random(0, {3, 3});
    const auto bias_gradient = (target * 2 / 9).sum(0);
    if (rank == 0) {
      const auto session =
          detail::join_session(*net, options, detail::Role::server);
      auto& link = *session.links[0];
      const auto& parameters = session.shards[0];
      answer_pull(link, parameters);
      int last = 0;
      for (int part = 0; part < 2; ++part) {
        int64_t which = 0;
        const auto gradient = receive_part(link, parameters, which);
        if (parameters[which].is_same(net->last->bias)) {
          TORCH_CHECK(gradient.allclose(bias_gradient), gradient);
          ++last;
        } else {
          TORCH_CHECK(parameters[which].is_same(net->last->weight));
          TORCH_CHECK(gradient.eq(0).all().item<bool>());
          ++last;
        }
      }
      TORCH_CHECK(last == 2);
      received.add();  // only now does the worker's backward go on
      int64_t which = 0;
      receive_part(link, parameters, which);
      receive_part(link, parameters, which);
      const auto push = link.receive();
      TORCH_CHECK(push.op == detail::Op::push);
      // The table's rows; nothing of `unused`.
      detail::Contents expected(parameters.size(), detail::kKept);
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].is_same(net->unused)) {
          expected[i] = detail::kNone;
        } else if (parameters[i].is_same(net->table->weight)) {
          expected[i] = 3;
        }
      }
      TORCH_CHECK(push.numbers == expected);
      const detail::Packet rest(parameters, push.numbers);
      link.send({.op = detail::Op::go});
      link.receive_payload(rest.flat());
      return;
    }
    ParameterClient client(net, options);
    client.pull();
    net->between = [&] { received.wait_for(1); };
    {
      const PushInBackwardGuard in_backward(client);
      net->loss(0, 0).backward();
    }
    client.push();
    // The table: three rows with their numbers.
    TORCH_CHECK(client.moved().sent ==
                4 * (5 * 4 + 4 + 4 * 3 + 3) + 3 * (4 * 5 + 8));
  });
}

TEST_CASE("a client that goes in mid-push leaves nothing behind",
          "[push_in_backward]") {
  const bool server_answers = GENERATE(true, false);
  std::weak_ptr<NetImpl> left;
  const auto errors =
      LocalWorld(2).try_ranks(Options(), [&](int rank, const Options& options) {
        Net net;
        if (rank == 0 && server_answers) {
          serve(*net, sgd, options);
        } else if (rank == 0) {
          const auto session =
              detail::join_session(*net, options, detail::Role::server);
          answer_pull(*session.links[0], session.shards[0]);
          session.links[0]->receive();
          session.links[0]->receive();  // never says go
        } else {
          left = net.ptr();
          auto client = std::make_unique<ParameterClient>(net, options);
          const PushInBackwardGuard outlives(*client);
          client->pull();
          net->loss(0, 0).backward();
          client.reset();
          net->loss(0, 0).backward();  // sends nothing
        }
      });
  CHECK_THAT(errors[0], Catch::Contains("worker 0 (rank 1) is gone"));
  CHECK(errors[1].empty());
  CHECK(left.expired());
}

TEST_CASE("a wait for room at one server keeps nothing at another",
          "[push_in_backward]") {
  test::Counter begun, dropped;
  LocalWorld(3).run_ranks(
      Options().servers(2), [&](int rank, const Options& options) {
        Net net;
        if (is_server(options)) {
          const auto session =
              detail::join_session(*net, options, detail::Role::server);
          auto& link = *session.links[0];
          const auto& parameters = session.shards[rank];
          answer_pull(link, parameters);
          // The table's server gets no part: its gradient is sparse.
          if (!parameters[0].is_same(net->table->weight)) {
            const auto part = link.receive();
            TORCH_CHECK(part.op == detail::Op::part);
            begun.add();
            dropped.wait_for(1);
            link.send({.op = detail::Op::go});
            const detail::FlatTensors memory(
                Tensors{parameters.at(part.numbers.at(0))});
            link.receive_payload(memory.flat());
          }
          TORCH_CHECK(link.receive().op == detail::Op::drop);
          dropped.add();
          answer_pull(link, parameters);
          return;
        }
        ParameterClient client(net, options);
        const PushInBackwardGuard in_backward(client);
        client.pull();
        net->between = [&] { begun.wait_for(1); };
        net->loss(0, 0).backward();
        client.pull();
      });
}

TEST_CASE("a finish gives back what has set out", "[push_in_backward]") {
  test::Counter received;
  LocalWorld(2).run_ranks(Options(), [&](int rank, const Options& options) {
    Net net;
    if (rank == 0) {
      const auto session =
          detail::join_session(*net, options, detail::Role::server);
      auto& link = *session.links[0];
      const auto& parameters = session.shards[0];
      answer_pull(link, parameters);
      auto message = link.receive();
      for (; message.op == detail::Op::part; message = link.receive()) {
        const detail::FlatTensors memory(
            Tensors{parameters.at(message.numbers.at(0))});
        link.send({.op = detail::Op::go});
        link.receive_payload(memory.flat());
        received.add();
      }
      TORCH_CHECK(received.has(1));
      TORCH_CHECK(message.op == detail::Op::drop);
      TORCH_CHECK(link.receive().op == detail::Op::leave);
      TORCH_CHECK(link.receive().op == detail::Op::last);
      const detail::FlatTensors memory(parameters);
      link.send({.op = detail::Op::parameters}, memory.flat());
      return;
    }
    ParameterClient client(net, options);
    const PushInBackwardGuard in_backward(client);
    client.pull();
    net->between = [&] { received.wait_for(1); };
    net->loss(0, 0).backward();
    client.finish();
  });
}

TEST_CASE("a server that ends in mid-backward is news for push",
          "[push_in_backward]") {
  test::Counter ended;
  const auto errors =
      LocalWorld(2).try_ranks(Options(), [&](int rank, const Options& options) {
        Net net;
        if (rank == 0) {
          const auto session =
              detail::join_session(*net, options, detail::Role::server);
          answer_pull(*session.links[0], session.shards[0]);
          session.links[0]->receive();
          session.links[0]->send(
              {.op = detail::Op::failure, .text = "no more"});
          ended.add();
          return;
        }
        ParameterClient client(net, options);
        const PushInBackwardGuard in_backward(client);
        client.pull();
        net->between = [&] { ended.wait_for(1); };
        net->loss(0, 0).backward();
        client.push();
      });
  CHECK(errors[0].empty());
  CHECK_THAT(errors[1],
             Catch::Contains("parameter server 0 (rank 0) ended: no more"));
}

TEST_CASE("a gradient in parts: what comes later counts",
          "[push_in_backward]") {
  using detail::kKept, detail::kNone, detail::kWhole;
  const Tensors parameters(4, torch::zeros({20}));
  const auto memory = GENERATE(
      as<torch::Tensor>(), torch::Tensor(), torch::empty({300}, torch::kByte));
  detail::HeldGradients held(memory);
  const auto lend = [&](const detail::Contents& contents, double value) {
    const auto flat = held.lend(parameters, contents);
    flat.view(torch::kFloat).fill_(value);
  };
  lend({kWhole, kKept, kKept, kKept}, 1);
  lend({kKept, kWhole, kKept, kKept}, 2);
  lend({kKept, kKept, kWhole, kKept}, 3);
  lend({kKept, kNone, kWhole, kKept}, 4);
  const auto all = held.all(parameters);
  CHECK(all[0].eq(1).all().item<bool>());
  CHECK_FALSE(all[1].defined());
  CHECK(all[2].eq(4).all().item<bool>());
  CHECK_FALSE(all[3].defined());
  CHECK(held.bytes() == 4 * 80);
  CHECK(held.missing_room() == 4 * 128);
}

}  // namespace push_in_backward_test
}  // namespace dp
