// Each rank is a forked process, because a process opens its stop file once.
#include "ddp/preemption.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <torch/nn/modules/linear.h>

#include "ddp/base/job_files/stop_file.h"
#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/join.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace preemption_test {

using test::TemporaryFolder;
using Options = DistributedDataParallelOptions;

/// Throws unless `is_so`. A rank's process cannot report Catch2's checks.
void expect(bool is_so, const std::string& what) {
  if (!is_so) {
    throw std::runtime_error("expected " + what);
  }
}

/// Throws unless all ranks have this text.
void expect_same(const std::string& mine) {
  for (const auto& text : all_gather_text(mine)) {
    expect(text == mine, "all ranks to have " + mine + ", but got " + text);
  }
}

/// Makes the folder that of a job, for this process.
void enter(const TemporaryFolder& folder, const std::string& stop_signal) {
  test::write_file(folder / "stop_signal", stop_signal + "\n");
  ::setenv("DDPRUN_JOB_DIR", folder.path().c_str(), 1);
}

/// Runs ranks with a stop file each. `tell` writes this rank's file, as ddprun
/// does.
void run_with_files(
    int size,
    const std::function<void(int rank, const std::function<void()>& tell)>&
        body) {
  const TemporaryFolder folder;
  const auto ends = test::run_rank_processes(size, [&](int rank) {
    const std::string file = folder / ("stop_" + std::to_string(rank));
    enter(folder, std::to_string(SIGUSR1));
    body(rank, [&] {
      expect(::access(file.c_str(), F_OK) == 0, "a rank that asks");
      test::write_file(file, "signal=SIGUSR1 seconds=30\n");
    });
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.signal == 0);
  }
}

/// Returns the pass after which this rank stops. The stop file is written after
/// pass `told`, or never if `told` is negative.
template <typename Model>
int64_t stops_after(Model& model,
                    int rank,
                    int64_t told,
                    const std::function<void()>& tell) {
  for (int64_t pass = 1; pass <= 20; ++pass) {
    model->forward(torch::ones({1, 3}) * (rank + pass)).sum().backward();
    if (pass == told) {
      expect(!stop_requested(), "nothing to stop for before the signal");
      tell();
    }
    if (stop_requested()) {
      expect(stop_requested(), "the same answer again");
      return pass;
    }
  }
  return -1;
}

TEST_CASE("all ranks stop after the same pass, whoever is told",
          "[preemption]") {
  const int size = GENERATE(1, 2, 3, 4);
  const bool finds_unused = GENERATE(false, true);
  const bool tells_all = GENERATE(false, true);
  run_with_files(size, [&](int rank, const auto& tell) {
    init_process_group(ProcessGroupOptions().backend("gloo"));
    DistributedDataParallel model(
        torch::nn::Linear(3, 2),
        Options().find_unused_parameters(finds_unused));
    const int64_t told = tells_all || rank == size - 1 ? 3 : -1;
    const int64_t last = stops_after(model, rank, told, tell);
    // A request that one rank sends in pass 4 is known to all ranks afterwards
    // at the latest, and the control channel may be faster.
    const int64_t expected = size == 1 ? 3 : tells_all ? 4 : 5;
    expect(last == expected || (last == 4 && size > 1),
           "the end after another pass than " + std::to_string(last));
    expect_same(std::to_string(last));
    destroy_process_group();
  });
}

/// Trains a rank with `count` inputs in a Join. The stop file is written after
/// pass `told`, which counts passes with and without an input.
///
/// @return the number of inputs on which this rank has trained
template <typename Model>
int64_t trains_joined(Model& model,
                      int64_t count,
                      int64_t told,
                      const std::function<void()>& tell) {
  int64_t pass = 0;
  const auto pass_has_ended = [&] {
    if (++pass == told) {
      tell();
    }
  };
  Join join({*model});
  int64_t trained = 0;
  while (trained < count) {
    ++trained;
    model->forward(torch::ones({1, 3}) * trained).sum().backward();
    pass_has_ended();
    if (stop_requested()) {
      break;
    }
  }
  join.finish(pass_has_ended);
  return trained;
}

TEST_CASE("ranks with and without inputs stop after the same pass",
          "[preemption][join]") {
  constexpr int kSize = 3;
  constexpr int64_t kCounts[] = {2, 20, 30};
  const bool finds_unused = GENERATE(false, true);
  const int told_rank = GENERATE(0, 1, 2);
  const int64_t told = GENERATE(2, 5);
  CAPTURE(finds_unused, told_rank, told);
  run_with_files(kSize, [&](int rank, const auto& tell) {
    init_process_group(ProcessGroupOptions().backend("gloo"));
    DistributedDataParallel model(
        torch::nn::Linear(3, 2),
        Options().find_unused_parameters(finds_unused));
    expect(!stop_requested(), "nothing to stop for before the signal");
    const int64_t trained = trains_joined(
        model, kCounts[rank], rank == told_rank ? told : -1, tell);
    expect(stop_requested(), "a stop that all know of after the Join");
    // The told rank sends the request in the next pass, and all ranks in the
    // pass after it at the latest; the control channel may be faster.
    const int64_t expected = std::min(kCounts[rank], told + 2);
    expect(trained == expected || trained == std::min(kCounts[rank], told + 1),
           std::to_string(expected) + " inputs, but got " +
               std::to_string(trained));
    const auto all = all_gather_text(std::to_string(trained));
    expect(all.at(1) == all.at(2), "ranks 1 and 2 to stop after one pass");
    destroy_process_group();
  });
}

TEST_CASE("a stop in the last pass of a Join is for the next epoch",
          "[preemption][join]") {
  run_with_files(2, [](int rank, const auto& tell) {
    init_process_group(ProcessGroupOptions().backend("gloo"));
    DistributedDataParallel model(torch::nn::Linear(3, 2));
    expect(!stop_requested(), "nothing to stop for before the signal");
    const int64_t count = rank == 0 ? 1 : 3;
    const int64_t told = rank == 0 ? 2 : -1;
    expect(trains_joined(model, count, told, tell) == count, "all inputs");
    expect_same(stop_requested() ? "stops" : "goes on");
    expect(trains_joined(model, count, -1, tell) == 1, "the end at once");
    expect(stop_requested(), "a stop that all know of");
    destroy_process_group();
  });
}

TEST_CASE("passes that are not reduced, or by some ranks alone, decide nothing",
          "[preemption]") {
  run_with_files(3, [&](int rank, const auto& tell) {
    init_process_group(ProcessGroupOptions().backend("gloo"));
    const auto pair = new_group({0, 1});
    DistributedDataParallel model(torch::nn::Linear(3, 2));
    expect(!stop_requested(), "nothing to stop for");
    tell();
    if (pair != nullptr) {
      DistributedDataParallel of_two(torch::nn::Linear(3, 2),
                                     Options().process_group(pair));
      expect(stops_after(of_two, rank, -1, tell) == -1, "no end by two ranks");
    }
    {
      const NoSyncGuard no_sync(*model);
      expect(stops_after(model, rank, -1, tell) == -1, "no end by one rank");
    }
    expect(stops_after(model, rank, -1, tell) == 1, "all agree at once");
    destroy_process_group();
  });
}

TEST_CASE("without ddprun, and for a rank that is not told, all goes on",
          "[preemption]") {
  const bool has_file = GENERATE(false, true);
  run_with_files(2, [&](int rank, const auto& tell) {
    if (!has_file) {
      ::unsetenv("DDPRUN_JOB_DIR");
    }
    expect(!stop_requested(), "nothing to stop for before the job");
    init_process_group(ProcessGroupOptions().backend("gloo"));
    DistributedDataParallel model(torch::nn::Linear(3, 2));
    expect(stops_after(model, rank, -1, tell) == -1, "no end");
    destroy_process_group();
  });
}

TEST_CASE("a rank that polls ignores the signal of --on-preempt",
          "[preemption]") {
  // The number of the signal, the rank's earlier action for it, and whether the
  // signal ends the rank.
  using Row = std::tuple<int, void (*)(int), bool>;
  const auto [number, before, ends] =
      GENERATE(values<Row>({{SIGUSR1, SIG_DFL, false},
                            {SIGTERM, SIG_DFL, true},
                            {SIGUSR2, [](int) { std::_Exit(7); }, true}}));
  CAPTURE(number);
  const TemporaryFolder folder;
  const auto rank_ends =
      test::run_rank_processes(1, [&, number = number, before = before](int) {
        enter(folder, std::to_string(number));
        ::signal(number, before);
        expect(!stop_requested(), "no request");
        ::raise(number);
      });
  CHECK((rank_ends[0].signal != 0 || rank_ends[0].exit_code == 7) == ends);
}

TEST_CASE("a damaged number of the signal ends no rank", "[preemption]") {
  const std::string number = GENERATE("x", "", "-1", "99999999999");
  CAPTURE(number);
  const TemporaryFolder folder;
  const auto ends = test::run_rank_processes(1, [&](int) {
    enter(folder, number);
    expect(!stop_requested(), "no request");
  });
  CHECK(ends[0].error == "");
  CHECK(ends[0].signal == 0);
}

TEST_CASE("a stop file says it once something is in it", "[preemption]") {
  const TemporaryFolder folder;
  const std::string path = folder / "stop";
  detail::StopFile file(path);
  CHECK(test::read_file(path) == "");
  CHECK(!file.says_stop());
  test::write_file(path, "x");
  CHECK(file.says_stop());
  detail::StopFile second(path);  // keeps the file's content
  CHECK(second.says_stop());
  ::unlink(path.c_str());
  CHECK(file.says_stop());
  detail::StopFile impossible(folder / "no/such");
  CHECK(!impossible.says_stop());
}

}  // namespace preemption_test
}  // namespace ddp
