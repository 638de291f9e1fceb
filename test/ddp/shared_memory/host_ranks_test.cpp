// Trainings in shared memory. The ranks are processes of this host.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/kills.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace host_ranks_test {

using Catch::Contains;
using test::kills;
using test::RankEnd;
using test::run_rank_processes;
using test::signal_later;
using torch::Tensor;
using Group = c10::intrusive_ptr<c10d::Backend>;
using Model = DistributedDataParallel<torch::nn::LinearImpl>;

ProcessGroupOptions over_gloo() {
  return ProcessGroupOptions().backend("gloo").timeout(
      std::chrono::minutes(10));
}

/// Small buckets, so that there are two.
DistributedDataParallelOptions options_over(const Group& group) {
  return DistributedDataParallelOptions()
      .process_group(group)
      .bucket_cap_mb(1e-6)
      .first_bucket_cap_mb(1e-6);
}

torch::nn::Linear make_net() {
  torch::manual_seed(3);
  return torch::nn::Linear(30, 20);
}

template <class Module>
Tensor loss_of(Module& model, int rank, int step) {
  const auto x = torch::arange(60, torch::kFloat).reshape({2, 30});
  return model((x * (step + 1) + rank).sin()).pow(2).sum();
}

/// Makes this process one of another host: it sees another boot id. Returns
/// false without the rights for that.
bool enter_other_host() {
  const test::TemporaryFolder folder;
  const std::string file = folder / "boot_id";
  test::write_file(file, "of another host\n");
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount(file.c_str(),
                 "/proc/sys/kernel/random/boot_id",
                 "",
                 MS_BIND,
                 nullptr) == 0;
}

/// Moves every other rank to a second host, if there are two.
void enter_host(int rank, int hosts) {
  TORCH_CHECK(rank % hosts == 0 || enter_other_host());
}

/// Returns 1 and, with the rights for a second host, 2.
std::vector<int> numbers_of_hosts() {
  const auto ends = run_rank_processes(
      1, [](int /*rank*/) { TORCH_CHECK(enter_other_host()); });
  if (ends[0].error.empty()) {
    return {1, 2};
  }
  WARN("skipped: ranks on two hosts take the rights of root");
  return {1};
}

void expect_whole(const std::vector<RankEnd>& ends) {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(ends[rank].error == "");
    CHECK(ends[rank].signal == 0);
  }
}

/// Whether the tensor lies in memory that `SharedMemory` has mapped.
bool is_shared(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream in(line);
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    in >> std::hex >> begin >> dash >> end;
    if (begin <= address && address < end) {
      return line.find("/memfd:ddp") != std::string::npos;
    }
  }
  return false;
}

void expect_gradients_in_shared_memory(Model& model, bool is_expected) {
  for (int pass = 0; pass < 3; ++pass) {
    loss_of(model, 0, pass).backward();
    for (const auto& parameter : model->parameters()) {
      TORCH_CHECK(is_shared(parameter.grad()) == is_expected, "pass ", pass);
    }
  }
}

TEST_CASE("gradients of the ranks of one host lie in shared memory") {
  const bool option = GENERATE(true, false);
  const bool variable = GENERATE(true, false);
  expect_whole(run_rank_processes(2, [=](int rank) {
    if (!variable && rank == 1) {
      ::setenv("DDP_SHARED_MEMORY", "0", 1);
    }
    init_process_group(over_gloo().shared_memory(option || rank == 0));
    Model model(make_net(), options_over(nullptr));
    expect_gradients_in_shared_memory(model, option && variable);
    destroy_process_group();
  }));
}

TEST_CASE("a group around the job's gets its all-reduces") {
  expect_whole(run_rank_processes(2, [](int) {
    init_process_group(over_gloo());
    auto counted = c10::make_intrusive<test::CountingBackend>(process_group());
    Model model(make_net(), options_over(counted));
    expect_gradients_in_shared_memory(model, false);
    TORCH_CHECK(counted->take().all_reduce >= 3 * 620 * 4);
    destroy_process_group();
  }));
}

/// Trains in all ways that change the memory of gradients. Returns the
/// gradients and parameters of each step.
std::vector<Tensor> train(Model& model, int rank) {
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  std::vector<Tensor> seen;
  std::vector<Tensor> held;
  for (int step = 0; step < 12; ++step) {
    loss_of(model, rank, step).backward();
    for (const auto& parameter : model->parameters()) {
      seen.push_back(parameter.grad().clone());
      if (rank == 1 && step % 2 == 0) {
        held.push_back(parameter.grad());  // this rank alone gets new memory
        seen.push_back(held[held.size() / 2]);
      }
    }
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
    optimizer.step();
    optimizer.zero_grad(step % 3 != 0);
    for (const auto& parameter : model->parameters()) {
      seen.push_back(parameter.detach().clone());
    }
  }
  return seen;
}

/// Makes an exchange around one that sums.
using Around = std::function<std::shared_ptr<Exchange>(
    const std::shared_ptr<Exchange>& sum)>;

TEST_CASE("two ranks train as over Gloo, bit for bit") {
  const Around around = GENERATE(
      Around([](const auto&) { return nullptr; }), Around([](const auto& sum) {
        return std::make_shared<CastExchange>(sum, torch::kBFloat16);
      }));
  const bool view = GENERATE(false, true);
  expect_whole(run_rank_processes(2, [=](int rank) {
    init_process_group(over_gloo());
    const auto group = process_group();
    const Group plain = c10::make_intrusive<test::CountingBackend>(group);
    Model ours(
        make_net(),
        options_over(group)
            .exchange(around(std::make_shared<SharedMemoryAllReduce>(group)))
            .gradient_as_bucket_view(view));
    Model theirs(make_net(),
                 options_over(plain)
                     .exchange(around(std::make_shared<AllReduce>(plain)))
                     .gradient_as_bucket_view(view));
    const auto got = train(ours, rank);
    const auto expected = train(theirs, rank);
    TORCH_CHECK(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      TORCH_CHECK(got[i].equal(expected[i]), "tensor ", i);
    }
    destroy_process_group();
  }));
}

TEST_CASE("an exchange of the program sums in shared memory") {
  expect_whole(run_rank_processes(2, [=](int) {
    init_process_group(over_gloo());
    const auto group = process_group();
    Model model(make_net(),
                options_over(group).exchange(
                    std::make_shared<SharedMemoryAllReduce>(group)));
    expect_gradients_in_shared_memory(model, true);
    destroy_process_group();
  }));
}

TEST_CASE("a new group has shared memory of its own") {
  expect_whole(run_rank_processes(3, [](int rank) {
    init_process_group(over_gloo());
    const auto pair = new_group({0, 2});
    Model model(make_net(), options_over(nullptr));
    expect_gradients_in_shared_memory(model, true);
    if (pair) {
      model->update_process_group(pair);
      model->zero_grad();
      expect_gradients_in_shared_memory(model, true);
      auto plain = make_net();
      for (const int other : {0, 2}) {
        (loss_of(plain, other, 0) / 2).backward();
      }
      model->zero_grad();
      loss_of(model, rank, 0).backward();
      TORCH_CHECK(model->parameters()[0].grad().allclose(
          plain->parameters()[0].grad(), 1e-4, 1e-5));
    }
    destroy_process_group();
  }));
}

/// A single buffer, which autograd saves.
struct MaskedImpl : torch::nn::Module {
  MaskedImpl()
      : weight(register_parameter("weight", torch::ones({8}))),
        mask(register_buffer("mask", torch::ones({8}))) {}
  Tensor forward(const Tensor& x) { return x * weight * mask; }
  Tensor weight, mask;
};
TORCH_MODULE(Masked);

TEST_CASE("a buffer that is sent does not count as changed for autograd") {
  expect_whole(run_rank_processes(2, [](int) {
    init_process_group(over_gloo());
    DistributedDataParallel model(Masked(), options_over(nullptr));
    const auto first = model->forward(torch::ones({8})).sum();
    const auto second = model->forward(torch::ones({8})).sum();
    first.backward();
    second.backward();
    destroy_process_group();
  }));
}

TEST_CASE("ranks that do not all give the job's group learn why") {
  const auto ends = run_rank_processes(2, [](int rank) {
    init_process_group(over_gloo());
    auto group = process_group();
    if (rank == 0) {
      group = c10::make_intrusive<test::CountingBackend>(group);
    }
    Model model(make_net(), options_over(group));
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error, Contains("a group of the job over Gloo"));
  }
}

TEST_CASE("the profiler sees sums in shared memory") {
  expect_whole(run_rank_processes(2, [](int rank) {
    init_process_group(over_gloo());
    Model model(make_net(), options_over(nullptr));
    loss_of(model, rank, 0).backward();
    ::setenv("KINETO_LOG_LEVEL", "5", 1);  // says that there is no GPU
    namespace kineto = torch::autograd::profiler;
    using namespace torch::profiler::impl;
    const ProfilerConfig config(ProfilerState::KINETO,
                                /*report_input_shapes=*/true);
    kineto::prepareProfiler(config, {ActivityType::CPU});
    kineto::enableProfiler(config, {ActivityType::CPU});
    loss_of(model, rank, 1).backward();
    const auto result = kineto::disableProfiler();
    int64_t elements = 0;
    for (const auto& event : result->events()) {
      TORCH_CHECK(event.name() != "gloo:all_reduce");
      if (event.name() == "ddp:all_reduce") {
        elements += event.shapes().at(0).at(0);
      }
    }
    TORCH_CHECK(elements >= 620);
    destroy_process_group();
  }));
}

TEST_CASE("three ranks have the mean, with the same bits") {
  for (const int hosts : numbers_of_hosts()) {
    CAPTURE(hosts);
    expect_whole(run_rank_processes(3, [hosts](int rank) {
      enter_host(rank, hosts);
      init_process_group(over_gloo());
      Model model(make_net(), options_over(nullptr));
      auto plain = make_net();
      for (int pass = 0; pass < 5; ++pass) {
        for (int other = 0; other < 3; ++other) {
          (loss_of(plain, other, pass) / 3).backward();
        }
        loss_of(model, rank, pass).backward();
        for (size_t i = 0; i < 2; ++i) {
          const auto grad = model->parameters()[i].grad();
          std::vector<Tensor> most{grad.clone()};
          std::vector<Tensor> least{grad.clone()};
          c10d::AllreduceOptions options;
          options.reduceOp = c10d::ReduceOp::MAX;
          process_group()->allreduce(most, options)->wait();
          options.reduceOp = c10d::ReduceOp::MIN;
          process_group()->allreduce(least, options)->wait();
          TORCH_CHECK(most[0].equal(least[0]));
          TORCH_CHECK(grad.allclose(plain->parameters()[i].grad(), 1e-4, 1e-5));
          TORCH_CHECK(is_shared(grad) == (hosts == 1));
        }
      }
      destroy_process_group();
    }));
  }
}

TEST_CASE("gradients outlive their wrapper and the job") {
  expect_whole(run_rank_processes(2, [](int rank) {
    init_process_group(over_gloo());
    Tensor grad;
    Tensor before;
    {
      Model model(make_net(), options_over(nullptr));
      loss_of(model, rank, 0).backward();
      grad = model->parameters()[0].grad();
      before = grad.clone();
    }
    Model next(make_net(), options_over(nullptr));
    loss_of(next, rank, 1).backward();
    TORCH_CHECK(grad.equal(before));
    destroy_process_group();
    grad.add_(1);
    TORCH_CHECK(grad.equal(before + 1));
  }));
}

TEST_CASE("a forked child leaves the ranks' memory and group alone") {
  expect_whole(run_rank_processes(2, [](int rank) {
    init_process_group(over_gloo());
    Model model(make_net(), options_over(nullptr));
    loss_of(model, rank, 0).backward();
    const auto before = model->parameters()[0].grad().clone();
    const pid_t child = ::fork();
    if (child == 0) {
      for (const auto& parameter : model->parameters()) {
        parameter.mutable_grad().reset();
      }
      destroy_process_group();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    TORCH_CHECK(status == 0);
    TORCH_CHECK(model->parameters()[0].grad().equal(before));
    loss_of(model, rank, 1).backward();
    barrier();
    destroy_process_group();
  }));
}

/// Makes memfd_create() fail in this process, as a sandbox does.
void forbid_memfd() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)),
                           filter};
  TORCH_CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  TORCH_CHECK(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

TEST_CASE("ranks that cannot share memory train over Gloo") {
  expect_whole(run_rank_processes(2, [](int rank) {
    if (rank == 0) {
      forbid_memfd();
    }
    init_process_group(over_gloo());
    Model model(make_net(), options_over(nullptr));
    expect_gradients_in_shared_memory(model, false);
    destroy_process_group();
  }));
}

// --- ranks that end ---

TEST_CASE("a rank is killed while the ranks sum gradients") {
  constexpr int kRanks = 3;
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < kills(); ++i) {
    const std::chrono::microseconds time(
        std::uniform_int_distribution<>(1, 60'000)(random));
    const int victim = std::uniform_int_distribution<>(0, kRanks - 1)(random);
    CAPTURE(time.count(), victim);
    const auto ends = run_rank_processes(kRanks, [=](int rank) {
      init_process_group(over_gloo());
      Model model(make_net(), options_over(nullptr));
      loss_of(model, rank, 0).backward();
      if (rank == victim) {
        signal_later(SIGKILL, time);
      }
      for (int pass = 1;; ++pass) {
        loss_of(model, rank, pass).backward();
      }
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      CAPTURE(rank);
      const auto& end = ends[static_cast<size_t>(rank)];
      if (rank == victim) {
        CHECK(end.signal == SIGKILL);
      } else {
        CHECK_THAT(end.error,
                   Contains("the process of rank " + std::to_string(victim) +
                            " has ended"));
      }
    }
  }
}

TEST_CASE("where rank 0 can no longer tell of a death, the time-out ends it") {
  const auto ends = run_rank_processes(3, [](int rank) {
    init_process_group(over_gloo().timeout(std::chrono::seconds(4)));
    const auto pair = new_group({1, 2});
    barrier();
    if (rank == 0) {
      ::raise(SIGKILL);
    }
    Model model(make_net(), options_over(pair));
    if (rank == 2) {
      signal_later(SIGKILL, std::chrono::milliseconds(500));
    }
    for (int pass = 0;; ++pass) {
      loss_of(model, rank, pass).backward();
    }
  });
  CHECK_THAT(ends[1].error, Contains("timed out"));
  CHECK(ends[2].signal == SIGKILL);
}

TEST_CASE("a group that a rank aborts ends the others' pass") {
  const auto ends = run_rank_processes(2, [](int rank) {
    init_process_group(over_gloo());
    Model model(make_net(), options_over(nullptr));
    loss_of(model, rank, 0).backward();
    if (rank == 1) {
      signal_later(SIGKILL, std::chrono::seconds(10));
      process_group()->abort();
      for (;;) {
        ::pause();
      }
    }
    loss_of(model, rank, 1).backward();
  });
  CHECK_THAT(ends[0].error,
             Contains("rank 1 of the group has left or stopped"));
  CHECK(ends[1].signal == SIGKILL);
}

TEST_CASE("a rank that stands still ends the others' pass at the time-out") {
  const auto ends = run_rank_processes(2, [](int rank) {
    init_process_group(over_gloo().timeout(std::chrono::seconds(2)));
    Model model(make_net(), options_over(nullptr));
    loss_of(model, rank, 0).backward();
    if (rank == 1) {
      signal_later(SIGKILL, std::chrono::seconds(5));
      ::raise(SIGSTOP);
    }
    loss_of(model, rank, 1).backward();
  });
  CHECK_THAT(ends[0].error, Contains("timed out"));
  CHECK_THAT(ends[0].error, Contains("rank 1"));
  CHECK(ends[1].signal == SIGKILL);
}

}  // namespace host_ranks_test
}  // namespace ddp
