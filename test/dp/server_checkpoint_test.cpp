#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <filesystem>
#include <tuple>

#include "ddp/checkpoint.h"
#include "ddp/collectives.h"
#include "dp/parameter_server.h"
#include "test/dp/server_ranks.h"
#include "test/support/temporary_folder.h"

namespace dp {
namespace server_checkpoint_test {

using test::try_ranks;
using Options = ParameterServerOptions;
using Tensors = std::vector<torch::Tensor>;

constexpr auto kSynchronous = UpdateMode::synchronous;
constexpr auto kAsynchronous = UpdateMode::asynchronous;

std::unique_ptr<torch::optim::Optimizer> adam(const Tensors& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, 0.1);
}

/// Has parameters of two dtypes.
struct NetImpl : torch::nn::LinearImpl {
  NetImpl() : LinearImpl(4, 3) {
    wide = register_parameter("wide", torch::zeros({3}, torch::kDouble));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return LinearImpl::forward(x) + wide.to(torch::kFloat);
  }
  torch::Tensor wide;
};
TORCH_MODULE(Net);

Net make_net(double value) {
  Net net;
  const torch::NoGradGuard no_grad;
  net->weight.copy_(torch::arange(12).view({3, 4}) * value);
  net->bias.fill_(value);
  net->wide.fill_(value);
  return net;
}

torch::Tensor loss_of(Net& net, int64_t step, int worker) {
  return (net->forward(torch::ones({1, 4})) *
          static_cast<double>(step + 2 * worker - 3))
      .pow(2)
      .sum();
}

struct Job {
  int servers = 1;
  UpdateMode mode = kSynchronous;
  std::string path;
  int64_t every = 0;
  bool resume = false;
  int64_t until = 0;  ///< update that ends the job
  double value = 1;   ///< initial parameter value
  int64_t first = 0;  ///< expected first update
  /// Updates after which the last worker dies, before its next push; -1: never.
  int64_t last_alive = -1;
};

/// Returns the parameters after `until` updates of an undisturbed training with
/// one optimizer, without servers. Gradients differ between workers and steps.
Tensors train_alone(const Job& job) {
  const int workers = job.mode == kSynchronous ? 2 : 1;
  auto net = make_net(1);
  torch::optim::Adam optimizer(net->parameters(), 0.1);
  for (int64_t step = 0; step < job.until; ++step) {
    Tensors sums;
    for (int worker = 0; worker < workers; ++worker) {
      net->zero_grad();
      loss_of(net, step, worker).backward();
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        const auto term = net->parameters()[i].grad() * (1.0 / workers);
        worker == 0 ? sums.push_back(term) : void(sums[i].add_(term));
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      net->parameters()[i].mutable_grad() = sums[i];
    }
    optimizer.step();
  }
  return net->parameters();
}

/// Runs a job; its workers end with the parameters of `train_alone`. Returns
/// the ranks' errors.
std::vector<std::string> run(const Job& job) {
  const int workers = job.mode == kSynchronous ? 2 : 1;
  return try_ranks(job.servers + workers, [&](int /*rank*/) {
    const auto options = Options()
                             .servers(job.servers)
                             .mode(job.mode)
                             .checkpoint(job.path)
                             .checkpoint_every(job.every)
                             .resume(job.resume);
    auto net = make_net(job.value);
    if (is_server(options)) {
      TORCH_CHECK(serve(*net, adam, options).updates == job.until);
      return;
    }
    ParameterClient client(net, options);
    client.pull();
    TORCH_CHECK(client.version() == job.first, client.version());
    for (int64_t step = client.version(); step < job.until; ++step) {
      client.pull();
      TORCH_CHECK(step != job.last_alive || client.worker() + 1 < workers,
                  "the worker dies");
      net->zero_grad();
      loss_of(net, step, client.worker()).backward();
      client.push();
    }
    client.finish();
    const auto expected = train_alone(job);
    for (size_t i = 0; i < expected.size(); ++i) {
      TORCH_CHECK(net->parameters()[i].equal(expected[i]));
    }
  });
}

void run_well(const Job& job) {
  const auto errors = run(job);
  REQUIRE(errors == std::vector<std::string>(errors.size()));
}

void check_each(const Job& job, const std::string& part) {
  for (const auto& error : run(job)) {
    CHECK_THAT(error, Catch::Contains(part));
  }
}

std::string file_of(const std::string& path, int server, int update) {
  return path + "." + std::to_string(server) + "/step-00000000" +
         std::to_string(update) + ".pt";
}

TEST_CASE("servers go on as if they had not ended", "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.servers = GENERATE(1, 2);
  job.mode = GENERATE(kSynchronous, kAsynchronous);
  job.path = folder / "ps";
  job.resume = true;  // there is no checkpoint yet
  job.every = 3;
  job.until = 7;
  run_well(job);
  for (int server = 0; server < job.servers; ++server) {
    CHECK(std::filesystem::exists(file_of(job.path, server, 3)));
    CHECK(std::filesystem::exists(file_of(job.path, server, 6)));
  }
  // Neither the initial parameters nor updates after the checkpoint matter.
  job.value = 5;
  job.first = 6;
  job.until = 9;
  run_well(job);
}

TEST_CASE("a job that lost a worker goes on from the servers' checkpoint",
          "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  std::tie(job.servers, job.mode) =
      GENERATE(table<int, UpdateMode>({{1, kSynchronous}, {2, kAsynchronous}}));
  job.path = folder / "ps";
  job.until = 9;
  job.every = 3;
  job.last_alive = 7;  // one update after the newest checkpoint
  const auto errors = run(job);
  const std::string dead =
      c10::str("worker ", job.mode == kSynchronous ? 1 : 0);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    const bool died = rank + 1 == errors.size();
    CHECK_THAT(errors[rank], Catch::Contains(died ? "the worker dies" : dead));
  }
  job.last_alive = -1;
  job.resume = true;
  job.value = 5;
  job.first = 6;
  run_well(job);
}

TEST_CASE("a server that has not written the newest update",
          "[server_checkpoint]") {
  // As after a kill between the writes of two servers.
  const int late = GENERATE(0, 1);
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.servers = 2;
  job.path = folder / "ps";
  job.until = 6;
  job.every = 2;
  run_well(job);  // files of updates 6 and 4
  REQUIRE(std::filesystem::remove(file_of(job.path, late, 6)));
  job.resume = true;
  SECTION("has the one before") {
    job.first = 4;
    job.every = 1;
    run_well(job);
    CHECK(std::filesystem::exists(file_of(job.path, 0, 5)));
  }
  SECTION("has none that the others have") {
    REQUIRE(std::filesystem::remove(file_of(job.path, late, 4)));
    check_each(job,
               "Expected an update after which all servers have saved their "
               "parameters, but got checkpoints after ");
  }
}

TEST_CASE("a checkpoint that is damaged", "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.path = folder / "ps";
  job.until = 4;
  job.every = 2;
  run_well(job);
  ddp::test::write_file(file_of(job.path, 0, 4), "no file");
  job.resume = true;
  SECTION("has another one before it") {
    job.first = 2;
    run_well(job);
  }
  SECTION("is the only one") {
    REQUIRE(std::filesystem::remove(file_of(job.path, 0, 2)));
    check_each(job, "Expected a sound checkpoint in " + job.path + ".0");
  }
}

TEST_CASE("checkpoints that do not fit the servers", "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.path = folder / "ps";
  job.every = 1;
  job.until = 1;
  run_well(job);
  SECTION("of another number of servers") {
    job.servers = 2;
    job.resume = true;
    std::filesystem::create_directory(job.path + ".1");
    std::filesystem::copy(file_of(job.path, 0, 1), file_of(job.path, 1, 1));
    check_each(job, "Cannot load " + job.path);
  }
  SECTION("of a training that is not resumed") {
    check_each(job,
               "Expected no checkpoints of another training, but there is " +
                   job.path + ".0");
  }
  SECTION("a file of an earlier release") {
    REQUIRE(std::filesystem::remove(file_of(job.path, 0, 1)));
    REQUIRE(std::filesystem::remove(job.path + ".0"));
    ddp::test::write_file(job.path + ".0", "file");
    job.resume = true;
    check_each(job, "Cannot read " + job.path + ".0: Not a directory");
  }
}

TEST_CASE("a checkpoint of one server is one of a plain program",
          "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.path = folder / "ps";
  job.every = 4;
  job.until = 4;
  run_well(job);
  auto net = make_net(5);
  torch::optim::Adam optimizer(net->parameters(), 0.3);
  ddp::Checkpoint checkpoint(net);
  checkpoint.add("optimizer", optimizer).load(file_of(job.path, 0, 4));
  CHECK(checkpoint.step() == 4);
  const auto expected = train_alone(job);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(net->parameters()[i].equal(expected[i]));
  }
  const auto& options = optimizer.param_groups()[0].options();
  CHECK(options.get_lr() == 0.1);
}

TEST_CASE("a checkpoint that cannot be written ends the job everywhere",
          "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.path = folder / "no_such_folder/ps";
  job.every = 1;
  job.until = 5;
  check_each(job, "an update failed: Cannot save ");
  check_each(job, "no_such_folder/ps.0");
}

TEST_CASE("options of a checkpoint without a path", "[server_checkpoint]") {
  Job job;
  job.every = 1;
  check_each(job, "Expected a path in checkpoint()");
}

}  // namespace server_checkpoint_test
}  // namespace dp
