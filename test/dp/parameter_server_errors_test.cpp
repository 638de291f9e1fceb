#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <future>
#include <optional>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "dp/parameter_server.h"
#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/detail/session.h"
#include "test/dp/local_world.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"
#include "test/support/no_more_threads.h"

namespace dp {
namespace parameter_server_errors_test {

using std::chrono::milliseconds;
using test::LocalWorld;
using Options = ParameterServerOptions;
using Tensors = std::vector<torch::Tensor>;

std::unique_ptr<torch::optim::Optimizer> sgd(const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
}

/// Returns a net with two parameters, one for each of two servers.
torch::nn::Linear make_net() {
  return torch::nn::Linear(4, 3);
}

void step(torch::nn::Linear& net, ParameterClient& client) {
  client.pull();
  net->zero_grad();
  net->forward(torch::ones({2, 4})).sum().backward();
  client.push();
}

/// Runs serve() on the servers and `work` on the workers.
template <class Work>
std::vector<std::string> try_job(int world,
                                 const Options& options,
                                 const Work& work) {
  return LocalWorld(world).try_ranks(options,
                                     [&](int rank, const Options& own) {
                                       auto net = make_net();
                                       if (is_server(own)) {
                                         serve(*net, sgd, own);
                                       } else {
                                         ParameterClient client(net, own);
                                         work(net, client);
                                       }
                                     });
}

void check_each(const std::vector<std::string>& errors,
                const std::string& part) {
  for (const auto& error : errors) {
    CHECK_THAT(error, Catch::Contains(part));
  }
}

TEST_CASE("synchronous: a worker that dies ends the job everywhere",
          "[parameter_server][errors]") {
  const int servers = GENERATE(1, 2);
  const auto errors =
      try_job(servers + 3,
              Options().servers(servers),
              [](torch::nn::Linear& net, ParameterClient& client) {
                for (int i = 0; i < 1000; ++i) {
                  TORCH_CHECK(client.worker() != 1 || i < 5, "out of memory");
                  step(net, client);
                }
                client.finish();
              });
  for (int rank = 0; rank < servers + 3; ++rank) {
    CHECK_THAT(
        errors[rank],
        Catch::Contains(rank == servers + 1
                            ? "out of memory"
                            : "worker 1 (rank " + std::to_string(servers + 1) +
                                  ") is gone: "));
  }
}

// The input has two rows of ones: each gradient is 2, and SGD's rate is 0.1.
TEST_CASE("synchronous: a worker that dies after its last push is not missed",
          "[parameter_server][errors]") {
  constexpr int kSteps = 3;
  const auto errors = LocalWorld(4).try_ranks(
      Options(), [](int /*rank*/, const Options& options) {
        auto net = make_net();
        if (is_server(options)) {
          const auto report = serve(*net, sgd, options);
          TORCH_CHECK(report.updates == kSteps);
          TORCH_CHECK(report.lost == std::vector<int>{1});
          return;
        }
        ParameterClient client(net, options);
        const auto start = net->weight.detach().clone();
        for (int i = 0; i < kSteps; ++i) {
          step(net, client);
        }
        TORCH_CHECK(client.worker() != 1, "out of memory");
        client.finish();
        TORCH_CHECK((net->weight - start)
                        .allclose(torch::full({3, 4}, -kSteps * 2 * 0.1)));
      });
  CHECK(errors == std::vector<std::string>{"", "", "out of memory", ""});
}

TEST_CASE("asynchronous: the others finish when a worker dies",
          "[parameter_server][errors]") {
  const int servers = GENERATE(1, 2);
  const int64_t bound = GENERATE(0, 4);
  LocalWorld world(servers + 3);
  const auto errors =
      world.try_ranks(Options()
                          .servers(servers)
                          .mode(UpdateMode::asynchronous)
                          .staleness_bound(bound),
                      [&](int rank, const Options& options) {
                        auto net = make_net();
                        if (is_server(options)) {
                          const auto report = serve(*net, sgd, options);
                          TORCH_CHECK(report.lost == std::vector<int>{1});
                          TORCH_CHECK(report.updates == 20 + 20 + 5);
                          return;
                        }
                        ParameterClient client(net, options);
                        for (int i = 0; i < 20; ++i) {
                          if (client.worker() == 1 && i == 5) {
                            client.pull();  // others may wait for its push
                            TORCH_CHECK(false, "out of memory");
                          }
                          step(net, client);
                        }
                        client.finish();
                      });
  for (int rank = 0; rank < servers + 3; ++rank) {
    CHECK(errors[rank] == (rank == servers + 1 ? "out of memory" : ""));
  }
}

TEST_CASE("asynchronous: a job without workers ends",
          "[parameter_server][errors]") {
  const auto errors =
      try_job(3,
              Options().mode(UpdateMode::asynchronous),
              [](torch::nn::Linear& net, ParameterClient& client) {
                step(net, client);
                TORCH_CHECK(false, "out of memory");
              });
  CHECK_THAT(errors[0], Catch::Contains("no worker is left; the last: worker"));
}

TEST_CASE("a job that ends early leaves what it has trained with its servers",
          "[parameter_server][errors]") {
  const auto mode = GENERATE(UpdateMode::synchronous, UpdateMode::asynchronous);
  torch::Tensor moved;
  const auto errors = LocalWorld(2).try_ranks(
      Options().mode(mode), [&](int /*rank*/, const Options& options) {
        auto net = make_net();
        if (!is_server(options)) {
          ParameterClient client(net, options);
          for (int i = 0; i < 5; ++i) {
            step(net, client);
          }
          client.pull();
          TORCH_CHECK(false, "out of memory");
        }
        const auto start = net->weight.detach().clone();
        try {
          serve(*net, sgd, options);
        } catch (const c10::Error&) {
          moved = net->weight.detach() - start;
          throw;
        }
      });
  CHECK_THAT(errors[0], Catch::Contains("worker 0 (rank 1) is gone"));
  REQUIRE(moved.defined());
  CHECK(moved.allclose(torch::full({3, 4}, -5 * 2 * 0.1)));
}

TEST_CASE("a server that dies ends the job everywhere",
          "[parameter_server][errors]") {
  const auto mode = GENERATE(UpdateMode::synchronous, UpdateMode::asynchronous);
  const int dead = GENERATE(0, 1);
  LocalWorld world(5);
  const auto errors = world.try_ranks(
      Options().servers(2).mode(mode), [&](int rank, const Options& options) {
        auto net = make_net();
        if (rank == dead) {
          // Answers one pull of each worker and then ends.
          auto session =
              detail::join_session(*net, options, detail::Role::server);
          const detail::FlatTensors parameters(session.shards[rank]);
          for (const auto& link : session.links) {
            link->receive();
            link->send({.op = detail::Op::parameters}, parameters.flat());
          }
          TORCH_CHECK(false, "killed");
        } else if (is_server(options)) {
          serve(*net, sgd, options);
        } else {
          ParameterClient client(net, options);
          for (int i = 0; i < 1000; ++i) {
            step(net, client);
          }
          client.finish();
        }
      });
  const std::string name = "parameter server " + std::to_string(dead) +
                           " (rank " + std::to_string(dead) + ") is gone: ";
  for (int rank = 0; rank < 5; ++rank) {
    CHECK_THAT(errors[rank], Catch::Contains(rank == dead ? "killed" : name));
  }
}

TEST_CASE("a server that cannot go on tells everyone why",
          "[parameter_server][errors]") {
  const auto mode = GENERATE(UpdateMode::synchronous, UpdateMode::asynchronous);
  const auto fails_in = GENERATE(as<std::string>(), "hook", "factory", "null");
  LocalWorld world(4);
  const auto errors = world.try_ranks(
      Options().servers(2).mode(mode), [&](int rank, const Options& options) {
        auto net = make_net();
        if (is_server(options)) {
          const bool is_bad = rank == 1;
          auto own = options;
          if (is_bad && fails_in == "hook") {
            own.before_update([](const Update& update, auto&) {
              TORCH_CHECK(update.number < 3, "the gradient is not finite");
            });
          }
          serve(
              *net,
              [&](const Tensors& parameters)
                  -> std::unique_ptr<torch::optim::Optimizer> {
                if (is_bad && fails_in == "null") {
                  return nullptr;
                }
                TORCH_CHECK(!is_bad || fails_in != "factory", "no such rule");
                return sgd(parameters);
              },
              own);
          return;
        }
        ParameterClient client(net, options);
        for (int i = 0; i < 1000; ++i) {
          step(net, client);
        }
        client.finish();
      });
  check_each(errors,
             fails_in == "hook" ? "an update failed: the gradient is not finite"
             : fails_in == "factory" ? "no such rule"
                                     : "make_optimizer, but got none");
  check_each(errors, "parameter server 1 (rank 1) ended: ");
}

TEST_CASE("a server that cannot start its threads tells its workers",
          "[parameter_server][errors]") {
  constexpr int kWorkers = 2;
  test::Counter ready;
  const auto errors = LocalWorld(1 + kWorkers)
                          .try_ranks(Options(), [&](int, const Options& own) {
                            auto net = make_net();
                            if (!is_server(own)) {
                              ParameterClient client(net, own);
                              ready.add();
                              step(net, client);
                              return;
                            }
                            std::optional<ddp::test::NoMoreThreads> none;
                            serve(
                                *net,
                                [&](const Tensors& parameters) {
                                  ready.wait_for(kWorkers);  // no thread later
                                  none.emplace();
                                  return sgd(parameters);
                                },
                                own);
                          });
  check_each(errors, "Expected to start a thread for worker 0 of 2, but got");
}

TEST_CASE("workers that push unequally often", "[parameter_server][errors]") {
  const auto errors = try_job(
      3, Options(), [](torch::nn::Linear& net, ParameterClient& client) {
        for (int i = 0; i < 4 + client.worker(); ++i) {
          step(net, client);
        }
        client.finish();
      });
  check_each(errors,
             "worker 0 (rank 1) finished after 4 pushes and worker 1 (rank 2) "
             "made 5");
}

TEST_CASE("a silent worker counts as gone", "[parameter_server][errors]") {
  std::promise<void> ended;
  const auto end = ended.get_future().share();
  LocalWorld world(2);
  const auto errors = world.try_ranks(
      Options().timeout(milliseconds(200)),
      [&](int rank, const Options& options) {
        auto net = make_net();
        if (is_server(options)) {
          try {
            serve(*net, sgd, options);
          } catch (...) {
            ended.set_value();
            throw;
          }
          return;
        }
        ParameterClient client(net, options);
        // Sends nothing until the job has ended.
        TORCH_CHECK(end.wait_for(test::kPatience) == std::future_status::ready,
                    "the job has not ended");
        step(net, client);
      });
  CHECK_THAT(
      errors[0],
      Catch::Contains("worker 0 (rank 1) is gone: Timed out waiting 200ms"));
  CHECK_THAT(errors[1],
             Catch::Contains("parameter server 0 (rank 0) is gone: "));
}

TEST_CASE("a worker that computes for long hears why the job has ended",
          "[parameter_server][errors]") {
  test::Counter told;
  std::promise<void> ended;
  const auto end = ended.get_future().share();
  const auto errors = LocalWorld(3).try_ranks(
      Options()
          .mode(UpdateMode::asynchronous)
          .before_update([](const auto&, auto&) {
            TORCH_CHECK(false, "the gradient is not finite");
          }),
      [&](int, const Options& options) {
        auto net = make_net();
        if (is_server(options)) {
          try {
            serve(*net, sgd, options);
          } catch (...) {
            ended.set_value();
            throw;
          }
          return;
        }
        ParameterClient client(net, options);
        client.pull();
        if (client.worker() == 1) {
          told.wait_for(1);
          // The server waits for this worker before it ends.
          TORCH_CHECK(
              end.wait_for(milliseconds(50)) == std::future_status::timeout,
              "the server has gone");
        }
        client.push();
        try {
          client.pull();
        } catch (...) {
          told.add();
          throw;
        }
      });
  check_each(errors, "an update failed: the gradient is not finite");
}

/// Returns the error of a server to which a worker sends `message`.
std::string server_error_for(const detail::Message& message) {
  return LocalWorld(2).try_ranks(Options(), [&](int, const Options& options) {
    auto net = make_net();
    if (is_server(options)) {
      serve(*net, sgd, options);
    } else {
      detail::join_session(*net, options, detail::Role::worker)
          .links[0]
          ->send(message);
    }
  })[0];
}

TEST_CASE("a server without room for gradients", "[parameter_server][errors]") {
  check_each(try_job(2,
                     Options().gradients_held(0),
                     [](torch::nn::Linear&, ParameterClient&) {}),
             "Expected gradients_held of 1 or more, but got 0");
}

TEST_CASE("a worker that does not say why it failed",
          "[parameter_server][errors]") {
  CHECK_THAT(server_error_for({.op = detail::Op::failure}),
             Catch::Contains("a rank failed and did not say why"));
}

TEST_CASE("a worker that speaks out of turn", "[parameter_server][errors]") {
  CHECK_THAT(server_error_for({.op = detail::Op::parameters}),
             Catch::Contains("Expected worker 0 (rank 1) to keep to the "
                             "protocol, but got what a server sends"));
}

TEST_CASE("asynchronous: a worker that is given up knows it while others train",
          "[parameter_server][errors]") {
  test::Counter told;
  const auto errors = LocalWorld(3).try_ranks(
      Options().mode(UpdateMode::asynchronous),
      [&](int rank, const Options& options) {
        auto net = make_net();
        if (is_server(options)) {
          TORCH_CHECK(serve(*net, sgd, options).lost == std::vector<int>{1});
        } else if (rank == 1) {
          ParameterClient client(net, options);
          step(net, client);
          told.wait_for(1);
          step(net, client);
          client.finish();
        } else {
          auto session =
              detail::join_session(*net, options, detail::Role::worker);
          session.links[0]->send({.op = detail::Op::parameters});
          const auto ends = c10::make_scope_exit([&] { told.add(); });
          session.links[0]->receive();
        }
      });
  CHECK(errors[0].empty());
  CHECK(errors[1].empty());
  CHECK_THAT(errors[2],
             Catch::Contains("parameter server 0 (rank 0) is gone: ") &&
                 !Catch::Contains("Timed out"));
}

TEST_CASE("calls in the wrong order", "[parameter_server][errors]") {
  const auto errors = try_job(
      2, Options(), [](torch::nn::Linear& net, ParameterClient& client) {
        CHECK_THROWS_WITH(client.push(),
                          Catch::Contains("Expected pull() before"));
        step(net, client);
        CHECK_THROWS_WITH(client.push(),
                          Catch::Contains("Expected pull() before"));
        client.finish();
        CHECK_THROWS_WITH(client.pull(),
                          Catch::Contains("this client has finished"));
        CHECK_THROWS_WITH(client.finish(),
                          Catch::Contains("this client has finished"));
      });
  check_each(errors, "");
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("ranks that do not fit", "[parameter_server][errors]") {
  using detail::claim;
  using detail::handshake_problem;
  using detail::Role;
  const Options one;
  CHECK(handshake_problem(
            {claim(one, 2, Role::server), claim(one, 2, Role::worker)}, 1)
            .empty());
  CHECK_THAT(handshake_problem({claim(one, 2, Role::server),
                                claim(Options().servers(2), 2, Role::worker)},
                               1),
             Catch::Contains("rank 0 has servers(1), mode(synchronous), "
                             "timeout(1800000 ms) in a world of 2, and rank 1 "
                             "has servers(2)"));
  CHECK_THAT(
      handshake_problem(
          {claim(Options().mode(UpdateMode::asynchronous), 2, Role::server),
           claim(Options().mode(UpdateMode::asynchronous).staleness_bound(9),
                 2,
                 Role::worker)},
          1),
      Catch::Contains("staleness_bound(9)"));
  CHECK_THAT(handshake_problem(
                 {claim(one, 2, Role::server),
                  claim(Options().timeout(milliseconds(9)), 2, Role::worker)},
                 1),
             Catch::Contains(
                 "rank 1 has servers(1), mode(synchronous), timeout(9 ms)"));
  const auto two = Options().servers(2);
  for (auto other : {Options(two).gradients_held(9),
                     Options(two).checkpoint("a").checkpoint_every(9),
                     Options(two).checkpoint("a").resume(true)}) {
    CHECK_THAT(handshake_problem({claim(two, 3, Role::server),
                                  claim(other, 3, Role::server),
                                  claim(two, 3, Role::worker)},
                                 2),
               Catch::Contains("on all servers, but rank 0 has "
                               "gradients_held(4), checkpoint_every(0), "
                               "resume(false), and rank 1 has gradients_held"));
    CHECK(handshake_problem({claim(two, 3, Role::server),
                             claim(two, 3, Role::server),
                             claim(other, 3, Role::worker)},
                            2)
              .empty());
  }
  CHECK_THAT(handshake_problem({claim(one, 3, Role::server),
                                claim(one, 3, Role::server),
                                claim(one, 3, Role::worker)},
                               1),
             Catch::Contains("Expected a ParameterClient on rank 1, but got "
                             "serve()"));
}

TEST_CASE("a role that is not the rank's", "[parameter_server][errors]") {
  check_each(LocalWorld(3).try_ranks(Options(),
                                     [](int rank, const Options& options) {
                                       auto net = make_net();
                                       ParameterClient client(net, options);
                                     }),
             "Expected serve() on rank 0, but got a ParameterClient");
}

TEST_CASE("a world that is too small", "[parameter_server][errors]") {
  const int size = GENERATE(1, 2);
  check_each(LocalWorld(size).try_ranks(Options().servers(2),
                                        [](int rank, const Options& options) {
                                          auto net = make_net();
                                          serve(*net, sgd, options);
                                        }),
             "Expected at least one server and one worker, but got 2 servers "
             "in a world of " +
                 std::to_string(size));
  CHECK_THROWS_WITH(is_server(Options()),
                    Catch::Contains("got 1 server in a world of 1 rank;"));
  CHECK_THROWS_WITH(is_server(Options().worker_env(ddp::WorkerEnv())),
                    Catch::Contains("store and worker_env"));
}

TEST_CASE("more servers than parameters", "[parameter_server][errors]") {
  check_each(
      try_job(
          4, Options().servers(3), [](torch::nn::Linear&, ParameterClient&) {}),
      "at most as many servers as parameters that require a gradient, "
      "but got 3 for 2 parameters");
}

TEST_CASE("a rank that does not come", "[parameter_server][errors]") {
  const auto errors =
      LocalWorld(2).try_ranks(Options().connect_timeout(milliseconds(100)),
                              [](int rank, const Options& options) {
                                auto net = make_net();
                                if (rank == 0) {
                                  serve(*net, sgd, options);
                                }
                              });
  CHECK_THAT(errors[0],
             Catch::Contains("Expected 2 ranks to arrive within 0.1 s, but 1 "
                             "did not: rank 1"));
}

TEST_CASE("a join after a failed one", "[parameter_server][errors]") {
  // Rank 2 arrives after the others have given up.
  test::Counter given_up;
  LocalWorld world(3);
  const auto train = [](torch::nn::Linear& net, const Options& options) {
    if (is_server(options)) {
      serve(*net, sgd, options);
    } else {
      ParameterClient client(net, options);
      step(net, client);
      client.finish();
    }
  };
  std::vector<std::string> refusals(2);
  world.run_ranks(Options(), [&](int rank, const Options& options) {
    auto net = make_net();
    if (rank == 2) {
      given_up.wait_for(2);
    } else {
      auto impatient = options;
      try {
        train(net, impatient.connect_timeout(milliseconds(100)));
      } catch (const c10::Error& error) {
        refusals.at(rank) = error.what_without_backtrace();
      }
      given_up.meet(2);
    }
    train(net, options);
    train(net, options);
  });
  for (const auto& refusal : refusals) {
    CHECK_THAT(refusal, Catch::Contains("ranks to arrive within 0.1 s, but"));
  }
}

TEST_CASE("a rank hears at once that rank 0 did not join",
          "[parameter_server][errors]") {
  // Rank 2 never arrives. Rank 1 may be too late for some sessions of rank 0.
  test::Counter heard;
  const auto errors =
      LocalWorld(3).try_ranks(Options(), [&](int rank, Options options) {
        auto net = make_net();
        while (rank == 0 && !heard.has(1)) {
          options.connect_timeout(milliseconds(100));
          try {
            serve(*net, sgd, options);
          } catch (const c10::Error&) {
            // Ranks are missing.
          }
        }
        if (rank == 1) {
          const auto notice = c10::make_scope_exit([&] { heard.add(); });
          ParameterClient client(net, options);
        }
      });
  CHECK_THAT(errors[1],
             Catch::Contains("Expected 3 ranks to arrive within 0.1 s, but 1 "
                             "did not: rank 2"));
}

TEST_CASE("a worker without its first server", "[parameter_server][errors]") {
  const auto errors =
      LocalWorld(2).try_ranks(Options().connect_timeout(milliseconds(100)),
                              [](int rank, const Options& options) {
                                auto net = make_net();
                                if (rank == 1) {
                                  ParameterClient client(net, options);
                                }
                              });
  CHECK_THAT(errors[1],
             Catch::Contains("Expected 2 ranks to arrive within 0.1 s, but "
                             "rank 0 did not"));
}

/// Acts like the store of a rank 0 that dies while another rank waits.
struct DyingStore : c10d::HashStore {
  using HashStore::wait;
  void wait(const std::vector<std::string>& /*keys*/,
            const milliseconds& /*timeout*/) override {
    C10_THROW_ERROR(DistNetworkError, "Connection reset by peer");
  }
};

TEST_CASE("a store that is gone is not taken for a rank that is late",
          "[parameter_server][errors]") {
  ddp::WorkerEnv env;
  env.rank = 1;
  env.world_size = 2;
  const auto options =
      Options().worker_env(env).store(c10::make_intrusive<DyingStore>());
  auto net = make_net();
  CHECK_THROWS_WITH(ParameterClient(net, options),
                    Catch::Contains("the store is gone") &&
                        Catch::Contains("Connection reset by peer") &&
                        !Catch::Contains("to arrive within"));
}

/// Acts like the store of a rank that dies before it connects to its peer.
struct PairlessStore : c10d::PrefixStore {
  using PrefixStore::PrefixStore;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    TORCH_CHECK(key.find("pair/") == std::string::npos, "killed");
    PrefixStore::set(key, value);
  }
};

TEST_CASE("who is connected hears why others are not",
          "[parameter_server][errors]") {
  const int servers = GENERATE(1, 2);
  // The last worker cannot connect to the first server.
  const int stranger = servers + 1;
  const auto work = [&](int rank, Options options) {
    const auto store = options.store();
    if (rank == stranger) {
      options.store(c10::make_intrusive<PairlessStore>("job", store));
    } else {
      options.store(c10::make_intrusive<c10d::PrefixStore>("job", store));
    }
    auto net = make_net();
    if (is_server(options)) {
      serve(*net, sgd, options);
    } else {
      ParameterClient client(net, options);
      step(net, client);
    }
  };
  const auto errors = LocalWorld(servers + 2)
                          .try_ranks(Options().servers(servers).connect_timeout(
                                         std::chrono::seconds(2)),
                                     work);
  const std::string name = "rank " + std::to_string(stranger);
  for (int rank = 0; rank < stranger; ++rank) {
    CHECK_THAT(errors.at(rank), Catch::Contains(name));
  }
}

TEST_CASE("modules that differ", "[parameter_server][errors]") {
  check_each(LocalWorld(3).try_ranks(Options(),
                                     [](int rank, const Options& options) {
                                       torch::nn::Linear net(4,
                                                             rank == 2 ? 5 : 3);
                                       if (is_server(options)) {
                                         serve(*net, sgd, options);
                                       } else {
                                         ParameterClient client(net, options);
                                       }
                                     }),
             "on ranks 0-1: parameter weight of Float [3, 4], strides [4, 1], "
             "requires_grad true; on rank 2: parameter weight of Float [5, 4]");
}

}  // namespace parameter_server_errors_test
}  // namespace dp
