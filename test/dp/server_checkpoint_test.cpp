#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <cstdio>
#include <filesystem>

#include "dp/parameter_server.h"
#include "dp/servers/detail/resume_points.h"
#include "test/dp/local_world.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace dp {
namespace server_checkpoint_test {

using detail::plan_resume;
using detail::ResumePoints;
using test::LocalWorld;
using Options = ParameterServerOptions;
using Tensors = std::vector<torch::Tensor>;
using Updates = std::vector<int64_t>;

constexpr auto kSynchronous = UpdateMode::synchronous;
constexpr auto kAsynchronous = UpdateMode::asynchronous;

TEST_CASE("servers go on from the newest update that all have",
          "[server_checkpoint]") {
  const auto plan = [](const std::vector<ResumePoints>& servers) {
    return plan_resume(servers, kSynchronous);
  };
  CHECK(plan({{}, {}}).updates.empty());
  CHECK(plan({{}, {}}).problem.empty());
  CHECK(plan({{{8, 6}}}).updates == Updates{8});
  CHECK(plan({{{8, 6}}, {{8, 6}}}).updates == Updates{8, 8});
  CHECK(plan({{{8, 6}}, {{6, 4}}}).updates == Updates{6, 6});
  CHECK(plan({{{6, 4}}, {{8, 6}}, {{6}}}).updates == Updates{6, 6, 6});
  CHECK(plan_resume({{{8, 6}}, {{7, 4}}}, kAsynchronous).updates ==
        Updates{8, 7});
  for (const auto mode : {kSynchronous, kAsynchronous}) {
    CHECK_THAT(plan_resume({{{8, 6}}, {}}, mode).problem,
               Catch::Contains("but parameter server 0 (rank 0) has 8 6, "
                               "parameter server 1 (rank 1) has none"));
    CHECK(plan_resume({{{8}}, {{}, "it is damaged"}}, mode).problem ==
          "parameter server 1 (rank 1) cannot go on: it is damaged");
  }
  CHECK_FALSE(plan({{{8, 6}}, {{4, 2}}}).problem.empty());
  CHECK(plan({{{8, 6}, "", 3}, {{8, 6}, "", 3}}).run == 3);
  CHECK(plan({{{}, "", 3}, {{}, "", 4}}).run == 3);  // a new training
  for (const auto mode : {kSynchronous, kAsynchronous}) {
    CHECK_THAT(
        plan_resume({{{10, 50}, "", 4}, {{50, 40}, "", 3}}, mode).problem,
        Catch::Contains("Expected the files of one training"));
  }
}

TEST_CASE("what a server has saved is said in a line", "[server_checkpoint]") {
  for (const auto& saved : std::vector<ResumePoints>{
           {}, {{3}, "", 7}, {{8, 0}}, {{}, "Cannot load it: why"}}) {
    const auto back = detail::resume_points_of_text(detail::to_text(saved));
    CHECK(back.updates == saved.updates);
    CHECK(back.problem == saved.problem);
    CHECK(back.run == saved.run);
  }
}

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

/// Returns the ranks' errors and sets `trained` to a worker's last parameters.
/// Gradients differ between workers and steps.
std::vector<std::string> run(const Job& job, Tensors& trained) {
  const int workers = job.mode == kSynchronous ? 2 : 1;
  return LocalWorld(job.servers + workers)
      .try_ranks(
          Options()
              .servers(job.servers)
              .mode(job.mode)
              .checkpoint(job.path)
              .checkpoint_every(job.every)
              .resume(job.resume),
          [&](int rank, const Options& options) {
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
              TORCH_CHECK(
                  step != job.last_alive || client.worker() + 1 < workers,
                  "the worker dies");
              net->zero_grad();
              (net->forward(torch::ones({1, 4})) *
               static_cast<double>(step + 2 * client.worker() - 3))
                  .pow(2)
                  .sum()
                  .backward();
              client.push();
            }
            client.finish();
            if (client.worker() == 0) {
              trained = {net->weight.detach().clone(),
                         net->bias.detach().clone(),
                         net->wide.detach().clone()};
            }
          });
}

Tensors run_well(const Job& job) {
  Tensors trained;
  const auto errors = run(job, trained);
  REQUIRE(errors == std::vector<std::string>(errors.size()));
  return trained;
}

std::vector<std::string> errors_of(const Job& job) {
  Tensors trained;
  return run(job, trained);
}

void check_equal(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].equal(b[i]));
  }
}

TEST_CASE("servers go on as if they had not ended", "[server_checkpoint]") {
  const int servers = GENERATE(1, 2);
  const auto mode = GENERATE(kSynchronous, kAsynchronous);
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.servers = servers;
  job.mode = mode;
  job.until = 9;
  const auto undisturbed = run_well(job);
  job.path = folder / "ps.pt";
  job.resume = true;  // there is no checkpoint yet
  job.every = 3;
  job.until = 7;
  run_well(job);
  CHECK(folder.size() == static_cast<size_t>(2 * servers));
  // Neither the initial parameters nor updates after the checkpoint matter.
  job.value = 5;
  job.first = 6;
  job.until = 9;
  check_equal(run_well(job), undisturbed);
}

TEST_CASE("a job that lost a worker goes on from the servers' checkpoint",
          "[server_checkpoint]") {
  const int servers = GENERATE(1, 2);
  const auto mode = GENERATE(kSynchronous, kAsynchronous);
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.servers = servers;
  job.mode = mode;
  job.until = 9;
  const auto undisturbed = run_well(job);
  job.path = folder / "ps.pt";
  job.every = 3;
  job.last_alive = 7;  // one update after the newest checkpoint
  const auto errors = errors_of(job);
  const std::string dead = c10::str("worker ", mode == kSynchronous ? 1 : 0);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    const bool died = rank + 1 == errors.size();
    CHECK_THAT(errors[rank], Catch::Contains(died ? "the worker dies" : dead));
  }
  job.last_alive = -1;
  job.resume = true;
  job.value = 5;
  job.first = 6;
  check_equal(run_well(job), undisturbed);
}

TEST_CASE("a server whose newest file is not there or damaged",
          "[server_checkpoint]") {
  const auto harm = GENERATE(as<std::string>(), "remove", "damage", "never");
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.servers = 2;
  job.until = 6;
  const auto undisturbed = run_well(job);
  job.path = folder / "ps.pt";
  job.every = 2;
  run_well(job);  // files of updates 6 and 4
  const std::string newest = folder / "ps.pt.1";
  if (harm == "damage") {
    const auto bytes = ddp::test::read_file(newest);
    ddp::test::write_file(newest, bytes.substr(0, bytes.size() / 2));
  } else {
    REQUIRE(std::remove(newest.c_str()) == 0);
  }
  job.resume = true;
  if (harm == "never") {
    REQUIRE(std::remove((newest + ".before").c_str()) == 0);
    for (const auto& error : errors_of(job)) {
      CHECK_THAT(error,
                 Catch::Contains("Expected an update after which all servers "
                                 "have saved their parameters"));
    }
    return;
  }
  job.first = 4;
  check_equal(run_well(job), undisturbed);
}

TEST_CASE("files that do not fit the servers", "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.path = folder / "ps.pt";
  job.every = 1;
  job.until = 1;
  run_well(job);
  job.resume = true;
  SECTION("of another number of servers") {
    job.servers = 2;
    ddp::test::write_file(folder / "ps.pt.1",
                          ddp::test::read_file(folder / "ps.pt.0"));
    for (const auto& error : errors_of(job)) {
      CHECK_THAT(error, Catch::Contains("use as many servers as wrote it"));
    }
  }
  SECTION("damaged, and none before") {
    ddp::test::write_file(folder / "ps.pt.0", "no file");
    for (const auto& error : errors_of(job)) {
      CHECK_THAT(error,
                 Catch::Contains("parameter server 0 (rank 0) cannot go on: "));
    }
  }
}

TEST_CASE("servers do not go on from different trainings",
          "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  const std::vector<std::string> files{folder / "ps.pt.1",
                                       folder / "ps.pt.1.before"};
  Job job;
  job.servers = 2;
  job.path = folder / "ps.pt";
  job.every = 5;
  job.until = 10;
  run_well(job);
  std::vector<std::string> first;
  for (const auto& file : files) {
    first.push_back(ddp::test::read_file(file));
  }
  job.until = 5;
  run_well(job);              // starts a new training
  CHECK(folder.size() == 2);  // without files of the first training
  // As after a kill before server 1 has written its first file.
  for (size_t i = 0; i < files.size(); ++i) {
    ddp::test::write_file(files[i], first[i]);
  }
  job.resume = true;
  for (const auto& error : errors_of(job)) {
    CHECK_THAT(error, Catch::Contains("Expected the files of one training"));
  }
}

TEST_CASE("a damaged file does not take the place of the sound one before",
          "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  const std::string newest = folder / "ps.pt.0";
  Job job;
  job.path = folder / "ps.pt";
  job.every = 2;
  job.until = 6;
  run_well(job);  // files of updates 6 and 4
  const auto sound = ddp::test::read_file(newest + ".before");
  ddp::test::write_file(newest, "no file");
  job.resume = true;
  job.first = 4;
  run_well(job);  // writes the file of update 6 again
  CHECK(ddp::test::read_file(newest + ".before") == sound);
  job.first = 6;
  job.until = 8;
  run_well(job);
}

TEST_CASE("a file that cannot be written ends the job everywhere",
          "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  Job job;
  job.path = folder / "no_such_folder/ps.pt";
  job.every = 1;
  job.until = 5;
  for (const auto& error : errors_of(job)) {
    CHECK_THAT(error, Catch::Contains("an update failed: "));
    CHECK_THAT(error, Catch::Contains("no_such_folder/ps.pt.0"));
  }
}

TEST_CASE("a file that cannot be written leaves the newest one in place",
          "[server_checkpoint]") {
  const ddp::test::TemporaryFolder folder;
  const std::string newest = folder / "ps.pt.0";
  Job job;
  job.path = folder / "ps.pt";
  job.every = 2;
  job.until = 4;
  run_well(job);
  const auto sound = ddp::test::read_file(newest);
  std::filesystem::create_directory(newest + ".new");  // no file can replace it
  job.resume = true;
  job.first = 4;
  job.until = 6;
  for (const auto& error : errors_of(job)) {
    CHECK_THAT(error, Catch::Contains("an update failed: "));
  }
  CHECK(ddp::test::read_file(newest) == sound);
}

TEST_CASE("options of a checkpoint without a path", "[server_checkpoint]") {
  Job job;
  job.every = 1;
  for (const auto& error : errors_of(job)) {
    CHECK_THAT(error, Catch::Contains("Expected a path in checkpoint()"));
  }
}

}  // namespace server_checkpoint_test
}  // namespace dp
