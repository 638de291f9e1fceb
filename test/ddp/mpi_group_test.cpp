// Groups over MPI and guests of an MPI program. mpirun starts the ranks:
//
//   mpirun -n 4 mpi_group_test_openmpi
//
// MPI_LEVEL is the thread level that the program asks for, FUNNELED if it is
// unset. Every rank runs every case.
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "ddp/ddp.h"
#include "ddp/mpi_group.h"
#include "ddp/nn/sync_batch_norm.h"
#include "test/support/catch.h"
#include "test/support/run_tests.h"

extern char** environ;

namespace ddp {
namespace mpi_group_test {

using Catch::Contains;
using Group = c10::intrusive_ptr<c10d::Backend>;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int rank_in_host() {
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(
      MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank(), MPI_INFO_NULL, &host);
  int rank = 0;
  MPI_Comm_rank(host, &rank);
  MPI_Comm_free(&host);
  return rank;
}

ProcessGroupOptions guest() {
  WorkerEnv env;
  env.rank = world_rank();
  env.world_size = world_size();
  return ProcessGroupOptions()
      .backend("gloo")
      .guest(true)
      .worker_env(env)
      .text_all_gather(mpi_text_all_gather(MPI_COMM_WORLD));
}

torch::nn::Sequential make_net() {
  torch::manual_seed(world_rank());  // rank 0's values are broadcast
  return torch::nn::Sequential(torch::nn::Linear(5, 16),
                               torch::nn::BatchNorm1d(16),
                               torch::nn::ReLU(),
                               torch::nn::Linear(16, 3));
}

/// Trains over the group and returns all parameters and buffers.
std::vector<at::Tensor> train(const DistributedDataParallelOptions& options) {
  auto net = make_net();
  DistributedDataParallel model(net, options);
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::manual_seed(100 + world_rank());
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    model->forward(torch::randn({8, 5})).square().mean().backward();
    optimizer.step();
  }
  auto result = net->parameters();
  const auto buffers = net->buffers();
  result.insert(result.end(), buffers.begin(), buffers.end());
  return result;
}

TEST_CASE("a training over MPI is the one over Gloo") {
  const auto of_mpi = train(DistributedDataParallelOptions().process_group(
      mpi_group(MPI_COMM_WORLD)));
  init_process_group(guest().shared_memory(false));
  const auto of_gloo = train(DistributedDataParallelOptions());
  destroy_process_group();
  REQUIRE(of_mpi.size() == of_gloo.size());
  for (size_t i = 0; i < of_mpi.size(); ++i) {
    INFO("tensor " << i);
    if (world_size() == 2) {
      CHECK(of_mpi[i].equal(of_gloo[i]));
    } else {
      CHECK(at::allclose(of_mpi[i], of_gloo[i], 1e-6, 1e-6));
    }
  }
}

TEST_CASE("a group of some ranks") {
  const int color = world_rank() % 2;
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, color, world_rank(), &half);
  {
    const auto group = mpi_group(half);
    MPI_Comm_free(&half);  // the group has its own
    CHECK(group->getSize() == (world_size() + 1 - color) / 2);
    const auto sum = reduce_tensor(
        torch::full({3}, world_rank(), torch::kFloat), Reduction::sum, group);
    int expected = 0;
    for (int rank = color; rank < world_size(); rank += 2) {
      expected += rank;
    }
    CHECK(sum.equal(torch::full({3}, expected, torch::kFloat)));
    train(DistributedDataParallelOptions().process_group(group));
  }
  const auto alone = mpi_group(MPI_COMM_SELF);
  CHECK(reduce_tensor(torch::ones({2}), Reduction::sum, alone)
            .equal(torch::ones({2})));
  train(DistributedDataParallelOptions().process_group(alone));
}

TEST_CASE("losses are weighted by the ranks' numbers of samples") {
  const auto group = mpi_group(MPI_COMM_WORLD);
  auto net = torch::nn::Linear(4, 1);
  torch::nn::init::constant_(net->weight, 0.5);
  torch::nn::init::constant_(net->bias, 0.25);
  auto whole = torch::nn::Linear(4, 1);
  torch::nn::init::constant_(whole->weight, 0.5);
  torch::nn::init::constant_(whole->bias, 0.25);
  const auto batch_of = [](int rank) {
    torch::manual_seed(rank);
    return torch::randn({rank + 1, 4});
  };
  DistributedDataParallel model(
      net, DistributedDataParallelOptions().process_group(group));
  const auto count = torch::tensor(world_rank() + 1.0);
  const auto loss = model->forward(batch_of(world_rank())).square().mean();
  (loss * (count / reduce_tensor(count, Reduction::mean, group))).backward();
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world_size(); ++rank) {
    all.push_back(batch_of(rank));
  }
  whole->forward(torch::cat(all)).square().mean().backward();
  CHECK(at::allclose(net->weight.grad(), whole->weight.grad(), 1e-5, 1e-6));
}

TEST_CASE("sums of every type") {
  const auto group = mpi_group(MPI_COMM_WORLD);
  const auto type = GENERATE(at::kByte,
                             at::kChar,
                             at::kShort,
                             at::kInt,
                             at::kLong,
                             at::kHalf,
                             at::kBFloat16,
                             at::kFloat,
                             at::kDouble,
                             at::kComplexFloat,
                             at::kComplexDouble);
  INFO(type);
  // Every second element: the tensor is not contiguous.
  auto tensor = torch::full({6}, world_rank() + 1, type).slice(0, 0, 6, 2);
  std::vector<at::Tensor> tensors{tensor};
  group->allreduce(tensors)->wait();
  const int sum = world_size() * (world_size() + 1) / 2;
  CHECK(tensor.equal(torch::full({3}, sum, type)));
}

TEST_CASE("halves are summed in float") {
  const auto group = mpi_group(MPI_COMM_WORLD);
  // 2048 + 1 is 2048 in half, so a sum in half would stay at 2048.
  auto tensor = torch::full({1}, world_rank() == 0 ? 2048 : 1, at::kHalf);
  std::vector<at::Tensor> tensors{tensor};
  group->allreduce(tensors)->wait();
  CHECK(tensor.equal(
      torch::full({1}, 2048 + world_size() - 1, at::kFloat).to(at::kHalf)));
}

TEST_CASE("other reductions") {
  const auto group = mpi_group(MPI_COMM_WORLD);
  const auto reduced = [&](at::Tensor tensor, c10d::ReduceOp operation) {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    group->allreduce(tensors, options)->wait();
    return tensors[0];
  };
  const auto mine = [](at::ScalarType type) {
    return torch::full({2}, world_rank() + 1, type);
  };
  CHECK(reduced(mine(at::kHalf), c10d::ReduceOp::MAX)
            .equal(torch::full({2}, world_size(), at::kHalf)));
  CHECK(reduced(mine(at::kLong), c10d::ReduceOp::MIN)
            .equal(torch::ones({2}, at::kLong)));
  CHECK_THROWS_WITH(reduced(mine(at::kFloat), c10d::ReduceOp::AVG),
                    Contains("Expected SUM"));
  CHECK_THROWS_WITH(reduced(mine(at::kComplexFloat), c10d::ReduceOp::MAX),
                    Contains("of real numbers"));
  CHECK_THROWS_WITH(reduced(torch::eye(2).to_sparse(), c10d::ReduceOp::SUM),
                    Contains("Expected a dense CPU tensor"));
}

TEST_CASE("the other collectives") {
  const auto group = mpi_group(MPI_COMM_WORLD);
  const int size = world_size();
  const auto all_ranks = static_cast<size_t>(size);
  const auto mine = torch::full({2}, world_rank(), at::kInt);
  const auto all = torch::arange(size, at::kInt).unsqueeze(1).expand({size, 2});
  CHECK(torch::stack(all_gather(mine, group)).equal(all));
  const auto at_last = gather(mine, size - 1, group);
  CHECK(at_last.size() == (world_rank() == size - 1 ? all_ranks : 0));
  if (!at_last.empty()) {
    CHECK(torch::stack(at_last).equal(all));
  }
  auto base = torch::empty({size, 2}, at::kInt);
  auto input = mine.clone();
  group->_allgather_base(base, input)->wait();
  CHECK(base.equal(all));
  std::vector<at::Tensor> from_last{mine.clone()};
  c10d::BroadcastOptions options;
  options.rootRank = size - 1;
  group->broadcast(from_last, options)->wait();
  CHECK(from_last[0].equal(torch::full({2}, size - 1, at::kInt)));
  barrier(group);
}

TEST_CASE("a tensor of more bytes than MPI counts", "[large]") {
  if (world_size() > 2) {
    return;  // for the memory
  }
  const auto group = mpi_group(MPI_COMM_WORLD);
  constexpr int64_t kCount = (int64_t{1} << 31) + 5;
  std::vector<at::Tensor> bytes{torch::zeros({kCount}, at::kByte)};
  bytes[0][kCount - 1].fill_(world_rank());
  c10d::BroadcastOptions from_1;
  from_1.rootRank = 1;
  group->broadcast(bytes, from_1)->wait();
  CHECK(bytes[0][kCount - 1].item<int>() == 1);
}

TEST_CASE("tensors of several pieces", "[large]") {
  const auto group = mpi_group(MPI_COMM_WORLD);
  constexpr int64_t kCount = (int64_t{1} << 26) + 5;
  const auto ends_of = [](const std::vector<at::Tensor>& tensors) {
    std::vector<int64_t> ends;
    for (const auto& tensor : tensors) {
      ends.push_back(tensor[0].item<int64_t>());
      ends.push_back(tensor[-1].item<int64_t>());
    }
    return ends;
  };
  std::vector<at::Tensor> sums{
      torch::full({kCount}, world_rank() + 1, at::kFloat)};
  group->allreduce(sums)->wait();
  const int64_t sum = world_size() * (world_size() + 1) / 2;
  CHECK(ends_of(sums) == std::vector<int64_t>{sum, sum});
  std::vector<int64_t> all;
  for (int64_t rank = 0; rank < world_size(); ++rank) {
    all.insert(all.end(), {rank, rank});
  }
  CHECK(ends_of(all_gather(torch::full({kCount}, world_rank(), at::kByte),
                           group)) == all);
}

TEST_CASE("communicators that are no group") {
  CHECK_THROWS_WITH(mpi_group(MPI_COMM_NULL), Contains("MPI_COMM_NULL"));
  if (world_size() < 2) {
    return;
  }
  const int color = world_rank() == 0 ? 0 : 1;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, color, world_rank(), &part);
  MPI_Comm inter = MPI_COMM_NULL;
  MPI_Intercomm_create(part, 0, MPI_COMM_WORLD, 1 - color, 0, &inter);
  CHECK_THROWS_WITH(mpi_group(inter), Contains("inter-communicator"));
  MPI_Comm_free(&inter);
  MPI_Comm_free(&part);
}

TEST_CASE("a sharded model is refused") {
  CHECK_THROWS_WITH(
      FullyShardedDataParallel(make_net(),
                               FullyShardedDataParallelOptions().process_group(
                                   mpi_group(MPI_COMM_WORLD))),
      Contains("Expected a group over NCCL or Gloo"));
}

TEST_CASE("a call on another thread") {
  int level = 0;
  MPI_Query_thread(&level);
  const auto group = mpi_group(MPI_COMM_WORLD);
  std::string error;
  std::vector<at::Tensor> sum{torch::ones({1})};
  std::thread([&] {
    try {
      group->allreduce(sum)->wait();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
  }).join();
  if (level >= MPI_THREAD_SERIALIZED) {
    CHECK(error == "");
    CHECK(sum[0].item<int>() == world_size());
  } else {
    CHECK_THAT(error,
               Contains("on the thread that has called MPI_Init()") &&
                   Contains("MPI_THREAD_SERIALIZED"));
  }
}

/// State of a process that a guest leaves unchanged.
struct ProcessState {
  std::vector<std::pair<void*, int>> actions;  // handler and flags, by signal
  std::terminate_handler terminate = std::get_terminate();
  std::vector<std::string> environment;
  size_t threads = 0;

  static ProcessState now() {
    ProcessState state;
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction action {};
      ::sigaction(number, nullptr, &action);
      state.actions.emplace_back(reinterpret_cast<void*>(action.sa_handler),
                                 action.sa_flags);
    }
    for (char** line = environ; *line != nullptr; ++line) {
      state.environment.emplace_back(*line);
    }
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/self/task")) {
      static_cast<void>(entry);
      ++state.threads;
    }
    return state;
  }
};

TEST_CASE("a guest leaves the process as it was") {
  // The first job starts autograd's and LibTorch's own threads.
  init_process_group(guest());
  train(DistributedDataParallelOptions());
  destroy_process_group();
  const auto before = ProcessState::now();
  init_process_group(guest());
  CHECK(rank() == world_rank());
  CHECK(ddp::world_size() == world_size());
  CHECK(local_rank() == rank_in_host());
  train(DistributedDataParallelOptions());
  const auto during = ProcessState::now();
  destroy_process_group();
  const auto after = ProcessState::now();
  CHECK(during.actions == before.actions);
  CHECK(during.terminate == before.terminate);
  CHECK(during.environment == before.environment);
  CHECK(after.actions == before.actions);
  CHECK(after.terminate == before.terminate);
  CHECK(after.environment == before.environment);
  CHECK(after.threads == before.threads);
}

TEST_CASE("an exchange without a rank") {
  CHECK_THROWS_WITH(init_process_group(ProcessGroupOptions().text_all_gather(
                        mpi_text_all_gather(MPI_COMM_WORLD))),
                    Contains("Expected ProcessGroupOptions::worker_env"));
}

}  // namespace mpi_group_test
}  // namespace ddp

int main(int argc, char** argv) {
  const std::map<std::string, int> levels{{"SINGLE", MPI_THREAD_SINGLE},
                                          {"FUNNELED", MPI_THREAD_FUNNELED},
                                          {"SERIALIZED", MPI_THREAD_SERIALIZED},
                                          {"MULTIPLE", MPI_THREAD_MULTIPLE}};
  const char* level = std::getenv("MPI_LEVEL");
  int provided = 0;
  MPI_Init_thread(&argc,
                  &argv,
                  levels.at(level == nullptr ? "FUNNELED" : level),
                  &provided);
  torch::set_num_threads(1);
  const auto kept = ddp::mpi_group(MPI_COMM_WORLD);
  const int result = ddp::test::run_tests(argc, argv);
  MPI_Finalize();
  try {
    kept->barrier();
    return 1;
  } catch (const c10::Error& error) {
    const std::string text = error.what();
    return text.find("after MPI_Finalize()") == std::string::npos ? 1 : result;
  }
}
