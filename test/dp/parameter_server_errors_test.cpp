#include <sys/time.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <tuple>

#include "ddp/collectives.h"
#include "dp/parameter_server.h"
#include "dp/servers/detail/session.h"
#include "test/dp/server_ranks.h"
#include "test/support/dice.h"
#include "test/support/no_more_threads.h"
#include "test/support/number_from.h"

namespace dp {
namespace parameter_server_errors_test {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::kPatience;
using test::try_ranks;
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

void wait_for_key(const std::string& key) {
  ddp::store()->wait({key}, kPatience);
}

/// Runs serve(), and after an error keeps the job's store until `key` is set.
void serve_until(const std::string& key,
                 torch::nn::Linear& net,
                 const Options& options) {
  try {
    serve(*net, sgd, options);
  } catch (...) {
    ddp::store()->set("ended", "");
    wait_for_key(key);
    throw;
  }
}

/// Runs serve() on the servers and `work` on the workers.
template <class Work>
std::vector<std::string> try_job(int world,
                                 const Options& options,
                                 const Work& work,
                                 milliseconds timeout = kPatience) {
  return try_ranks(
      world,
      [&](int /*rank*/) {
        auto net = make_net();
        if (is_server(options)) {
          serve(*net, sgd, options);
        } else {
          ParameterClient client(net, options);
          work(net, client);
        }
      },
      timeout);
}

void check_each(const std::vector<std::string>& errors,
                const std::string& part) {
  for (const auto& error : errors) {
    CHECK_THAT(error, Catch::Contains(part));
  }
}

/// How a rank dies: by an exception, or with its process.
void die(const std::string& how) {
  TORCH_CHECK(how != "throws", "out of memory");
  ::raise(SIGKILL);
}

std::string end_of(const std::string& how) {
  return how == "throws" ? "out of memory" : "signal 9";
}

TEST_CASE("synchronous: a worker that dies ends the job everywhere",
          "[parameter_server][errors]") {
  const int servers = GENERATE(1, 2);
  const auto how = GENERATE(as<std::string>(), "throws", "killed");
  const auto errors =
      try_job(servers + 3,
              Options().servers(servers),
              [&](torch::nn::Linear& net, ParameterClient& client) {
                for (int i = 0; i < 1000; ++i) {
                  if (client.worker() == 1 && i == 5) {
                    die(how);
                  }
                  step(net, client);
                }
                client.finish();
              });
  for (int rank = 0; rank < servers + 3; ++rank) {
    CHECK_THAT(
        errors[rank],
        Catch::Contains(rank == servers + 1
                            ? end_of(how)
                            : "worker 1 (rank " + std::to_string(servers + 1) +
                                  ") is gone: "));
  }
}

TEST_CASE("synchronous: a worker that dies while it waits is missed at once",
          "[parameter_server][errors]") {
  // Worker 1 dies while its push waits for worker 0, which computes.
  const auto errors = try_ranks(3, [&](int rank) {
    const Options options;
    auto net = make_net();
    if (is_server(options)) {
      serve_until("heard", net, options);
      return;
    }
    ParameterClient client(net, options);
    client.pull();
    net->forward(torch::ones({2, 4})).sum().backward();
    if (rank == 2) {
      wait_for_key("pulled");
      ::alarm(1);  // ends this process in the push
    } else {
      ddp::store()->set("pulled", "");
      wait_for_key("ended");
      ddp::store()->set("heard", "");
    }
    client.push();
  });
  CHECK_THAT(errors[0], Catch::Contains("worker 1 (rank 2) is gone: "));
  CHECK_THAT(errors[1], Catch::Contains("worker 1 (rank 2) is gone: "));
  CHECK(errors[2] == "signal " + std::to_string(SIGALRM));
}

TEST_CASE("asynchronous: the others finish when a worker dies",
          "[parameter_server][errors]") {
  int servers = 0;
  int64_t bound = 0;
  std::string how;
  std::tie(servers, bound, how) =
      GENERATE(table<int, int64_t, std::string>({{1, 0, "throws"},
                                                 {1, 4, "killed"},
                                                 {2, 0, "killed"},
                                                 {2, 4, "throws"}}));
  const auto errors = try_ranks(servers + 3, [&](int /*rank*/) {
    const auto options = Options()
                             .servers(servers)
                             .mode(UpdateMode::asynchronous)
                             .staleness_bound(bound);
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
        die(how);
      }
      step(net, client);
    }
    client.finish();
  });
  for (int rank = 0; rank < servers + 3; ++rank) {
    CHECK(errors[rank] == (rank == servers + 1 ? end_of(how) : ""));
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
  const auto errors = try_ranks(2, [&](int /*rank*/) {
    const auto options = Options().mode(mode);
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
      const auto moved = net->weight.detach() - start;
      TORCH_CHECK(moved.allclose(torch::full({3, 4}, -5 * 2 * 0.1)), moved);
      throw;
    }
  });
  CHECK_THAT(errors[0], Catch::Contains("worker 0 (rank 1) is gone"));
}

TEST_CASE("a server that dies ends the job everywhere",
          "[parameter_server][errors]") {
  const auto mode = GENERATE(UpdateMode::synchronous, UpdateMode::asynchronous);
  const int dead = GENERATE(0, 1);
  const auto errors = try_ranks(5, [&](int rank) {
    auto options = Options().servers(2).mode(mode);
    auto net = make_net();
    if (is_server(options)) {
      if (rank == dead) {
        options.before_update([](const Update& update, auto&) {
          if (update.number == 4) {
            ::raise(SIGKILL);
          }
        });
      }
      serve(*net, sgd, options);
    } else {
      ParameterClient client(net, options);
      for (int i = 0; i < 100'000; ++i) {
        step(net, client);
      }
      client.finish();
    }
  });
  const std::string name = "parameter server " + std::to_string(dead) +
                           " (rank " + std::to_string(dead) + ") is gone: ";
  for (int rank = 0; rank < 5; ++rank) {
    CHECK_THAT(errors[rank],
               Catch::Contains(rank == dead ? "signal 9" : name) &&
                   !Catch::Contains("backward"));
  }
}

TEST_CASE("workers wait for servers in another call",
          "[parameter_server][errors]") {
  const auto mode = GENERATE(UpdateMode::synchronous, UpdateMode::asynchronous);
  const int waiting = GENERATE(1, 2);  // of two workers
  const auto errors = try_ranks(
      3,
      [&](int rank) {
        const auto options = Options().mode(mode);
        auto net = make_net();
        if (is_server(options)) {
          serve(*net, sgd, options);
          return;
        }
        ParameterClient client(net, options);
        for (int i = 0; i < 10; ++i) {
          step(net, client);
          if (i == 5 && rank <= waiting) {
            client.pull();
            ddp::barrier();  // the server does not come
          }
        }
        client.finish();
      },
      std::chrono::minutes(10));
  for (int rank = 1; rank <= waiting; ++rank) {
    CHECK_THAT(errors[rank],
               Catch::Contains("in requests of the workers") &&
                   Catch::Contains("in barrier"));
  }
}

TEST_CASE("a server that cannot go on tells everyone why",
          "[parameter_server][errors]") {
  UpdateMode mode{};
  std::string fails_in;
  std::tie(mode, fails_in) = GENERATE(
      table<UpdateMode, std::string>({{UpdateMode::synchronous, "hook"},
                                      {UpdateMode::asynchronous, "hook"},
                                      {UpdateMode::asynchronous, "step"},
                                      {UpdateMode::synchronous, "factory"},
                                      {UpdateMode::asynchronous, "null"}}));
  struct NoStep : torch::optim::SGD {
    using SGD::SGD;
    torch::Tensor step(LossClosure) override {
      TORCH_CHECK(false, "the gradient is not finite");
    }
  };
  const auto errors = try_ranks(4, [&](int rank) {
    auto options = Options().servers(2).mode(mode);
    auto net = make_net();
    if (is_server(options)) {
      const bool is_bad = rank == 1;
      if (is_bad && fails_in == "hook") {
        options.before_update([](const Update& update, auto&) {
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
            if (is_bad && fails_in == "step") {
              return std::make_unique<NoStep>(parameters, 0.1);
            }
            TORCH_CHECK(!is_bad || fails_in != "factory", "no such rule");
            return sgd(parameters);
          },
          options);
      return;
    }
    ParameterClient client(net, options);
    for (int i = 0; i < 100'000; ++i) {
      step(net, client);
    }
    client.finish();
  });
  check_each(errors,
             fails_in == "factory" ? "no such rule"
             : fails_in == "null"
                 ? "make_optimizer, but got none"
                 : "an update failed: the gradient is not finite");
  check_each(errors, "parameter server 1 (rank 1) ended: ");
}

TEST_CASE("a server that cannot start its threads tells its workers",
          "[parameter_server][errors]") {
  constexpr int kWorkers = 2;
  const auto errors = try_ranks(1 + kWorkers, [&](int rank) {
    const Options options;
    auto net = make_net();
    if (!is_server(options)) {
      ParameterClient client(net, options);
      ddp::store()->set("ready/" + std::to_string(rank), "");
      step(net, client);
      return;
    }
    std::optional<ddp::test::NoMoreThreads> none;
    serve(
        *net,
        [&](const Tensors& parameters) {
          ddp::store()->wait({"ready/1", "ready/2"}, kPatience);
          none.emplace();
          return sgd(parameters);
        },
        options);
  });
  check_each(errors, "Expected to start a thread for worker 0 of 2, but got");
}

// Draws DDP_SEED's jobs and moments. ./scripts/random-tests runs it.
TEST_CASE("any rank is killed at any moment", "[.kills]") {
  ddp::test::Dice dice(ddp::test::number_from("DDP_SEED", 1));
  for (int job = 0; job < 20; ++job) {
    const int servers = 1 + dice.below(2);
    const int size = servers + 2 + dice.below(2);
    const bool is_synchronous = dice.chance(50);
    const int dead = dice.below(size);
    const int moment = 1 + dice.below(400'000);  // microseconds
    const auto errors = try_ranks(size, [&](int rank) {
      if (rank == dead) {
        const itimerval alarm{{0, 0}, {0, moment}};
        TORCH_CHECK(::setitimer(ITIMER_REAL, &alarm, nullptr) == 0);
      }
      const auto options = Options().servers(servers).mode(
          is_synchronous ? UpdateMode::synchronous : UpdateMode::asynchronous);
      auto net = make_net();
      if (is_server(options)) {
        serve(*net, sgd, options);
        return;
      }
      ParameterClient client(net, options);
      const auto end = steady_clock::now() + milliseconds(500);
      while (is_synchronous || steady_clock::now() < end) {
        step(net, client);
      }
      client.finish();
    });
    const bool others_train = !is_synchronous && dead >= servers;
    for (int rank = 0; rank < size; ++rank) {
      const auto& error = errors[rank];
      CAPTURE(job, servers, size, is_synchronous, dead, moment, rank, error);
      if (rank == dead) {
        CHECK(error == "signal " + std::to_string(SIGALRM));
      } else {
        const auto name = "rank " + std::to_string(dead);
        CHECK(((others_train && error.empty()) ||
               error.find(name) != std::string::npos));
      }
    }
  }
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
  const auto errors = try_ranks(
      2,
      [&](int /*rank*/) {
        const Options options;
        auto net = make_net();
        if (is_server(options)) {
          serve_until("heard", net, options);
          return;
        }
        ParameterClient client(net, options);
        wait_for_key("ended");  // sends nothing until the job has ended
        ddp::store()->set("heard", "");
        step(net, client);
      },
      milliseconds(5'000));
  CHECK_THAT(errors[0], Catch::Contains("worker 0 (rank 1) is gone: "));
  CHECK_THAT(errors[0], Catch::Contains("time-out of 5"));
  CHECK_THAT(errors[1],
             Catch::Contains("parameter server 0 (rank 0) is gone: "));
}

TEST_CASE("a worker that computes for long hears why the job has ended",
          "[parameter_server][errors]") {
  const auto errors = try_ranks(3, [&](int /*rank*/) {
    const auto options = Options()
                             .mode(UpdateMode::asynchronous)
                             .before_update([](const auto&, auto&) {
                               TORCH_CHECK(false, "the gradient is not finite");
                             });
    auto net = make_net();
    if (is_server(options)) {
      serve_until("heard", net, options);
      return;
    }
    ParameterClient client(net, options);
    client.pull();
    if (client.worker() == 1) {
      ddp::store()->set("pulled", "");
      wait_for_key("ended");
      ddp::store()->set("heard", "");
    } else {
      wait_for_key("pulled");
    }
    client.push();
    client.pull();
  });
  check_each(errors, "an update failed: the gradient is not finite");
}

TEST_CASE("asynchronous: a worker that is given up knows it while others train",
          "[parameter_server][errors]") {
  const auto errors = try_ranks(3, [&](int rank) {
    const auto options = Options().mode(UpdateMode::asynchronous);
    auto net = make_net();
    if (is_server(options)) {
      TORCH_CHECK(serve(*net, sgd, options).lost == std::vector<int>{1});
    } else if (rank == 1) {
      ParameterClient client(net, options);
      step(net, client);
      wait_for_key("told");
      step(net, client);
      client.finish();
    } else {
      const detail::Session session(*net, options);
      const auto number = torch::full({1}, 99, torch::kLong);
      session.wait(0, session.start(0, number, detail::Session::kWorker));
      try {
        session.wait(0, session.start(0, number, detail::Session::kServer));
      } catch (...) {
        ddp::store()->set("told", "");
        throw;
      }
    }
  });
  CHECK(errors[0].empty());
  CHECK(errors[1].empty());
  CHECK_THAT(errors[2],
             Catch::Contains("a message with parameter server 0 (rank 0)") &&
                 !Catch::Contains("imed out"));
}

TEST_CASE("a worker that speaks out of turn", "[parameter_server][errors]") {
  const auto errors = try_ranks(2, [&](int /*rank*/) {
    const Options options;
    auto net = make_net();
    if (is_server(options)) {
      serve(*net, sgd, options);
      return;
    }
    const detail::Session session(*net, options);
    const auto number = torch::full({1}, 99, torch::kLong);
    session.wait(0, session.start(0, number, detail::Session::kWorker));
    session.wait(0, session.start(0, number, detail::Session::kServer));
  });
  CHECK_THAT(errors[0],
             Catch::Contains("worker 0 (rank 1) is gone: Expected a request, "
                             "but got number 99"));
}

TEST_CASE("calls in the wrong order", "[parameter_server][errors]") {
  const auto throws = [](const auto& call, const std::string& part) {
    try {
      call();
    } catch (const c10::Error& error) {
      TORCH_CHECK(std::string(error.what()).find(part) != std::string::npos,
                  error.what());
      return;
    }
    TORCH_CHECK(false, "no error");
  };
  const auto errors = try_job(
      2, Options(), [&](torch::nn::Linear& net, ParameterClient& client) {
        throws([&] { client.push(); }, "Expected pull() before");
        step(net, client);
        throws([&] { client.push(); }, "Expected pull() before");
        client.finish();
        throws([&] { client.pull(); }, "this client has finished");
        throws([&] { client.finish(); }, "this client has finished");
      });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("ranks that do not fit", "[parameter_server][errors]") {
  const auto base = Options().servers(1).checkpoint("a");
  const auto asynchronous = Options(base).mode(UpdateMode::asynchronous);
  struct Case {
    Options mine, other;
    std::string part;
  };
  const auto one = GENERATE_COPY(values<Case>(
      {{base, Options(base).servers(2), "servers 1; on rank 2: servers 2"},
       {base, asynchronous, "mode synchronous; on rank 2: mode asynchronous"},
       {asynchronous,
        Options(asynchronous).staleness_bound(9),
        "staleness_bound 4; on rank 2: staleness_bound 9"},
       {base,
        Options(base).checkpoint_every(9),
        "checkpoint_every 0; on rank 2: checkpoint_every 9"},
       {base,
        Options(base).resume(true),
        "resume false; on rank 2: resume true"}}));
  check_each(try_ranks(3,
                       [&](int rank) {
                         auto net = make_net();
                         if (rank == 0) {
                           serve(*net, sgd, one.mine);
                         } else {
                           ParameterClient client(
                               net, rank == 1 ? one.mine : one.other);
                         }
                       }),
             "options of the parameter servers on all ranks, but got on ranks "
             "0-1: " +
                 one.part);
}

TEST_CASE("a role that is not the rank's", "[parameter_server][errors]") {
  check_each(try_ranks(3,
                       [&](int rank) {
                         auto net = make_net();
                         if (rank != 1) {
                           serve(*net, sgd);
                         } else {
                           ParameterClient client(net);
                         }
                       }),
             "Expected serve() on the first 1 ranks, but got it on rank 2, "
             "which needs a ParameterClient");
  check_each(try_ranks(3,
                       [&](int /*rank*/) {
                         auto net = make_net();
                         ParameterClient client(net);
                       }),
             "Expected a ParameterClient on the ranks from 1 on, but got it on "
             "rank 0, which needs serve()");
}

TEST_CASE("a world that is too small", "[parameter_server][errors]") {
  const int size = GENERATE(1, 2);
  check_each(try_ranks(size,
                       [](int /*rank*/) {
                         auto net = make_net();
                         serve(*net, sgd, Options().servers(2));
                       }),
             "Expected at least one server and one worker, but got 2 servers "
             "in a world of " +
                 std::to_string(size));
  CHECK_THROWS_WITH(is_server(Options()),
                    Catch::Contains("got 1 server in a world of 1 rank;"));
}

TEST_CASE("more servers than parameters", "[parameter_server][errors]") {
  check_each(
      try_job(
          4, Options().servers(3), [](torch::nn::Linear&, ParameterClient&) {}),
      "at most as many servers as parameters that require a gradient, "
      "but got 3 for 2 parameters");
}

TEST_CASE("parameters in one memory", "[parameter_server][errors]") {
  check_each(try_ranks(2,
                       [](int /*rank*/) {
                         torch::nn::Sequential net(torch::nn::Linear(3, 3),
                                                   torch::nn::Linear(3, 3));
                         const auto weights = net->parameters();
                         weights[2].set_data(weights[0].detach().t());
                         if (is_server()) {
                           serve(*net, sgd);
                         } else {
                           ParameterClient client(net);
                         }
                       }),
             "in memory of its own, because ranks step them by parts");
}

TEST_CASE("a rank that does not come", "[parameter_server][errors]") {
  const int absent = GENERATE(0, 1);
  const auto errors = try_ranks(3, [&](int rank) {
    auto net = make_net();
    TORCH_CHECK(rank != absent, "no data");
    if (is_server()) {
      serve(*net, sgd);
    } else {
      ParameterClient client(net);
    }
  });
  check_each(errors, "no data");
}

TEST_CASE("modules that differ", "[parameter_server][errors]") {
  check_each(try_ranks(3,
                       [](int rank) {
                         torch::nn::Linear net(4, rank == 2 ? 5 : 3);
                         if (is_server()) {
                           serve(*net, sgd);
                         } else {
                           ParameterClient client(net);
                         }
                       }),
             "on ranks 0-1: parameter weight of Float [3, 4], strides [4, 1], "
             "requires_grad true; on rank 2: parameter weight of Float [5, 4]");
}

}  // namespace parameter_server_errors_test
}  // namespace dp
