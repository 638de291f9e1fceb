// The progress that a rank reports for `ddprun --hang-timeout`. Each rank is a
// forked process, because a process opens its progress file once.
#include "ddp/progress.h"

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/nn/modules/linear.h>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/graphed_step.h"
#include "ddp/job/backends.h"
#include "ddp/optim/fused.h"
#include "ddp/process_group.h"
#include "launcher/workers/progress/progress_text.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace progress_test {

using launcher::parse_progress;
using launcher::Progress;
using test::TemporaryFolder;

/// Throws unless `is_so`. A rank's process cannot report Catch2's checks.
void expect(bool is_so, const std::string& what) {
  if (!is_so) {
    throw std::runtime_error("expected " + what);
  }
}

/// Runs ranks with a progress file each. `body` can read its rank's file at any
/// time.
void run_with_files(
    int size,
    const std::function<void(int rank, const std::function<Progress()>& now)>&
        body) {
  const TemporaryFolder folder;
  const auto ends = test::run_rank_processes(size, [&](int rank) {
    const std::string file = folder / ("progress_" + std::to_string(rank));
    test::write_file(file, "");
    ::setenv("DDPRUN_JOB_DIR", folder.path().c_str(), 1);
    body(rank, [&file] { return parse_progress(test::read_file(file)); });
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.signal == 0);
  }
}

TEST_CASE("replays are progress when they have completed",
          "[progress][departures]") {
  if (detail::nccl_device_count() < 2) {
    return;
  }
  run_with_files(2, [](int rank, const auto& now) {
    init_process_group(ProcessGroupOptions().backend("nccl"));
    torch::nn::Linear net(3, 2);
    net->to(local_device());
    DistributedDataParallel model(net);
    FusedSGD optimizer(model->parameters(), 0.125);
    GraphedStep step(
        model, optimizer, [&](const auto& in) { return model(in[0]).sum(); });
    const std::vector<torch::Tensor> in{torch::ones({1, 3}, local_device())};
    int64_t before = 0;
    for (int pass = 1; pass <= 8; ++pass) {
      const int64_t collectives = *now().collectives;
      step(in).template item<float>();
      // The first pass has planned the buckets.
      const int64_t made = *now().collectives - collectives;
      expect(pass <= 2 || made == before, "the collectives of an eager step");
      before = made;
    }
    expect(step.is_recorded(), "a recorded step");
    expect(now().passes == 7, "the seven passes before the last one");
    expect(now().waits, "waits on the device");
    if (rank == 0) {
      for (int i = 0; i < 3; ++i) {
        step(in);
      }
      expect(now().passes == 8, "no pass that rank 1 has not begun");
      store()->set("go", std::vector<uint8_t>());
    } else {
      store()->wait({"go"});
      for (int i = 0; i < 3; ++i) {
        step(in);
      }
    }
    step(in).template item<float>();
    step(in);
    expect(now().passes > 8, "more passes");
    destroy_process_group();
  });
}

TEST_CASE("a training reports its passes and collectives", "[progress]") {
  const int size = GENERATE(1, 2, 3);
  run_with_files(size, [&](int rank, const auto& now) {
    init_process_group(ProcessGroupOptions().backend("gloo"));
    expect(now().pid == ::getpid(), "this process");
    expect(!now().waits, "nothing to wait for after the start");
    expect(now().limit && now().limit->times == 5, "time for the first step");
    DistributedDataParallel model(torch::nn::Linear(3, 2));
    int64_t last = 0;
    for (int64_t pass = 1; pass <= 3; ++pass) {
      model->forward(torch::ones({1, 3}) * (rank + pass)).sum().backward();
      if (size > 1) {
        expect(now().passes == pass, "pass " + std::to_string(pass));
        expect(*now().collectives > last, "more collectives");
        last = *now().collectives;
        expect(!now().limit, "no limit of its own after a pass");
      }
      expect(pass == 1 || !now().limit, "no limit of its own");
      expect(!now().waits, "nothing to wait for after a pass");
    }
    barrier();
    destroy_process_group();
    expect(now().limit->time > std::chrono::hours(1000), "no limit any more");
    if (size == 1) {
      init_process_group(ProcessGroupOptions().backend("gloo"));
      expect(now().limit && now().limit->times == 5, "time for a first step");
      destroy_process_group();
    }
  });
}

TEST_CASE("a rank that waits in a collective says so", "[progress]") {
  run_with_files(2, [](int rank, const auto& now) {
    init_process_group(ProcessGroupOptions().backend("gloo"));
    if (rank == 0) {
      barrier();
      expect(now().text == "barrier", "the last collective's name");
    } else {
      const std::string path =
          std::getenv("DDPRUN_JOB_DIR") + std::string("/progress_0");
      const auto patience =
          std::chrono::steady_clock::now() + std::chrono::seconds(30);
      Progress other;
      do {
        other = parse_progress(test::read_file(path));
      } while (!(other.waits && other.text == "barrier") &&
               std::chrono::steady_clock::now() < patience);
      expect(other.waits && other.text == "barrier", "rank 0 to wait");
      expect(*other.collectives > *now().collectives, "rank 0 to be ahead");
      barrier();
    }
    destroy_process_group();
  });
}

TEST_CASE("a guard asks for a longer limit, nested ones too", "[progress]") {
  run_with_files(1, [](int, const auto& now) {
    using std::chrono::seconds;
    report_progress("reading");
    expect(now().text == "reading", "the text");
    {
      const QuietGuard outer(seconds(600), "evaluating");
      expect(now().limit->time == seconds(600), "600 s");
      expect(now().text == "evaluating", "what it does");
      {
        const QuietGuard inner(seconds(0));
        expect(now().limit->time == seconds(1), "at least a second");
      }
      expect(now().limit->time == seconds(600), "600 s again");
    }
    expect(!now().limit->time, "no limit in seconds");
  });
}

TEST_CASE("without ddprun reports do nothing", "[progress]") {
  const QuietGuard quiet(std::chrono::minutes(1), "x");
  report_progress("y");
}

}  // namespace progress_test
}  // namespace ddp
