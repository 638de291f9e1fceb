// Ranks that are guests in a host program, which gives them an all-gather of
// texts and owns the signals, the terminate handler and the environment.
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "ddp/job/backends.h"
#include "ddp/job/collectives.h"
#include "ddp/job/process_group.h"
#include "ddp/job/rendezvous.h"
#include "test/support/catch.h"
#include "test/support/deny_system_calls.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

extern char** environ;

namespace ddp {
namespace guest_test {

using Catch::Contains;

constexpr int kRanks = 3;

/// A host's all-gather, over a file.
TextAllGather text_all_gather_over(const std::string& path, int rank) {
  auto store = c10::make_intrusive<c10d::FileStore>(path, kRanks);
  return [store, rank, call = 0](const std::string& mine) mutable {
    const std::string prefix = std::to_string(call++) + "/";
    store->set(prefix + std::to_string(rank),
               std::vector<uint8_t>{mine.begin(), mine.end()});
    std::vector<std::string> all;
    for (int other = 0; other < kRanks; ++other) {
      const auto value = store->get(prefix + std::to_string(other));
      all.emplace_back(value.begin(), value.end());
    }
    return all;
  };
}

ProcessGroupOptions guest(const std::string& path, int rank) {
  WorkerEnv env;
  env.rank = rank;
  env.world_size = kRanks;
  return ProcessGroupOptions()
      .backend(detail::nccl_device_count() >= kRanks ? "nccl" : "gloo")
      .guest(true)
      .worker_env(env)
      .text_all_gather(text_all_gather_over(path, rank));
}

std::vector<std::string> environment() {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    lines.emplace_back(*line);
  }
  return lines;
}

void* action_of(int number) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  return reinterpret_cast<void*>(action.sa_handler);
}

TEST_CASE("guests meet by their host's all-gather", "[departures]") {
  const test::TemporaryFolder folder;
  const auto ends = test::run_rank_processes(kRanks, [&](int rank) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"}) {
      ::unsetenv(name);
    }
    const auto terminate = std::get_terminate();
    const auto pipe = action_of(SIGPIPE);
    const auto variables = environment();
    init_process_group(guest(folder / "store", rank));
    TORCH_CHECK(ddp::rank() == rank && world_size() == kRanks);
    TORCH_CHECK(local_rank() == rank);
    const auto mine = at::full({2}, rank, local_device());
    TORCH_CHECK(
        reduce_tensor(mine, Reduction::sum).cpu().equal(at::full({2}, 3)));
    destroy_process_group();
    TORCH_CHECK(std::get_terminate() == terminate);
    TORCH_CHECK(action_of(SIGPIPE) == pipe);
    TORCH_CHECK(environment() == variables);
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.exit_code == 0);
  }
}

TEST_CASE("rank 0 of guests cannot listen, and all ranks say so",
          "[departures]") {
  const test::TemporaryFolder folder;
  const auto ends = test::run_rank_processes(kRanks, [&](int rank) {
    if (rank == 0) {
      test::deny_system_calls({SYS_listen}, EPERM);
    }
    init_process_group(guest(folder / "store", rank));
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error, Contains("Expected rank 0 to listen at 127.0.0.1"));
  }
}

TEST_CASE("a host's all-gather returns too few texts", "[departures]") {
  const auto ends = test::run_rank_processes(1, [](int) {
    WorkerEnv env;
    env.world_size = 2;
    init_process_group(
        ProcessGroupOptions().guest(true).worker_env(env).text_all_gather(
            [](const std::string& mine) { return std::vector{mine}; }));
  });
  CHECK_THAT(
      ends[0].error,
      Contains("Expected ProcessGroupOptions::text_all_gather to return the "
               "texts of 2 ranks, but got 1"));
}

TEST_CASE("a group over NCCL by a host's all-gather", "[departures]") {
  if (detail::nccl_device_count() < kRanks) {
    return;  // the group needs a GPU for each rank
  }
  const test::TemporaryFolder folder;
  const auto ends = test::run_rank_processes(kRanks, [&](int rank) {
    const auto variables = environment();
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    WorkerEnv env;
    env.rank = rank;
    env.world_size = kRanks;
    detail::BackendSpec spec;
    spec.rank = rank;
    spec.size = kRanks;
    spec.device = device;
    spec.guest = true;
    spec.store =
        detail::open_store_by(text_all_gather_over(folder / "store", rank),
                              env,
                              spec.connect_timeout);
    const auto group = detail::make_nccl_backend(spec);
    std::vector<at::Tensor> tensors{at::full({2}, rank, device)};
    group->allreduce(tensors)->wait();
    TORCH_CHECK(tensors[0].cpu().equal(at::full({2}, 3)));
    TORCH_CHECK(environment() == variables);
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.exit_code == 0);
  }
}

}  // namespace guest_test
}  // namespace ddp
