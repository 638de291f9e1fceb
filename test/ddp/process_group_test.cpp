#include "ddp/process_group.h"

#include <torch/torch.h>

#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddp/collectives.h"
#include "ddp/detail/process_group/departure.h"
#include "ddp/detail/process_group/meeting.h"
#include "ddp/detail/text_collectives.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace process_group_test {

using std::chrono::milliseconds;
using test::Group;
using test::run_ranks;
using Env = std::map<std::string, std::string>;

WorkerEnv read(const Env& env) {
  return WorkerEnv::read([&](const char* name) {
    const auto found = env.find(name);
    return found == env.end() ? nullptr : found->second.c_str();
  });
}

const Env kRank1Of2{{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"LOCAL_RANK", "1"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", "29500"}};

Env with(Env env, const std::string& name, const std::string& value) {
  env[name] = value;
  return env;
}

Env without(Env env, const std::string& name) {
  env.erase(name);
  return env;
}

TEST_CASE("no launcher is a world of one", "[worker_env]") {
  const auto env = read({{"LOCAL_RANK", "nonsense"}});
  CHECK_FALSE(env.launched);
  CHECK(env.rank == 0);
  CHECK(env.world_size == 1);
}

TEST_CASE("a launcher's variables", "[worker_env]") {
  auto env = read(kRank1Of2);
  CHECK(env.rank == 1);
  CHECK(env.world_size == 2);
  CHECK(env.local_rank == 1);
  CHECK(env.master_addr == "127.0.0.1");
  CHECK(env.master_port == 29500);
  CHECK_FALSE(env.use_agent_store);
  CHECK(read(with(kRank1Of2, "TORCHELASTIC_USE_AGENT_STORE", "True"))
            .use_agent_store);
  // Kubernetes-like: no LOCAL_RANK, two workers a host.
  env = read({{"RANK", "3"},
              {"WORLD_SIZE", "4"},
              {"LOCAL_WORLD_SIZE", "2"},
              {"MASTER_ADDR", "a"},
              {"MASTER_PORT", "1"}});
  CHECK(env.local_rank == 1);
}

TEST_CASE("wrong variables are named", "[worker_env][errors]") {
  using Row = std::pair<Env, std::string>;
  const auto row = GENERATE(values<Row>(
      {{without(kRank1Of2, "WORLD_SIZE"), "WORLD_SIZE to be set"},
       {without(kRank1Of2, "RANK"), "RANK to be set"},
       {without(kRank1Of2, "MASTER_ADDR"), "MASTER_ADDR"},
       {without(kRank1Of2, "MASTER_PORT"), "MASTER_PORT to be set"},
       {with(kRank1Of2, "RANK", "2"), "got RANK=2 and WORLD_SIZE=2"},
       {with(kRank1Of2, "RANK", "-1"), "RANK to be an integer from 0"},
       {with(kRank1Of2, "RANK", "1x"), "but got \"1x\""},
       {with(kRank1Of2, "WORLD_SIZE", "0"), "WORLD_SIZE to be an integer"},
       {with(kRank1Of2, "LOCAL_RANK", ""), "LOCAL_RANK to be an integer"},
       {with(kRank1Of2, "MASTER_PORT", "65536"), "from 1 to 65535"}}));
  CHECK_THROWS_WITH(read(row.first),
                    Catch::Contains(row.second) && Catch::Contains("ddprun"));
}

TEST_CASE("keys of jobs and attempts are apart", "[rendezvous]") {
  WorkerEnv env;
  env.restart_count = 2;
  CHECK(detail::key_prefix(env, "job") == "ddp/job/attempt_2");
  env.use_agent_store = true;
  CHECK(detail::key_prefix(env, "job") == "ddp/job/attempt_2");
  env.host_count = 2;  // torchrun's agents count restarts each for itself
  CHECK(detail::key_prefix(env, "job") == "ddp/job");
}

TEST_CASE("arrivals that do not fit", "[rendezvous]") {
  CHECK(detail::arrivals_problem({{"gloo", ""}, {"gloo", ""}}).empty());
  CHECK_THAT(detail::arrivals_problem({{"nccl", ""}, {"gloo", ""}}),
             Catch::Contains("rank 0 uses \"nccl\" and rank 1 uses \"gloo\""));
  CHECK(detail::arrivals_problem({{"gloo", ""}, {"nccl", "no GPU"}}) ==
        "rank 1: no GPU");
}

TEST_CASE("missing ranks are listed", "[rendezvous][errors]") {
  c10d::HashStore store;
  CHECK_THROWS_WITH(
      detail::exchange_arrivals(store, 1, 4, {"gloo", ""}, milliseconds(20)),
      Catch::Contains("Expected 4 ranks") &&
          Catch::Contains("3 did not: rank 0, 2, 3."));
}

TEST_CASE("a rank that gives up is told to the others", "[rendezvous]") {
  c10d::HashStore store;
  std::thread peer([&] {
    detail::exchange_arrivals(
        store, 0, 3, {"nccl", "no GPU here"}, milliseconds(5000));
  });
  const auto arrivals =
      detail::exchange_arrivals(store, 1, 3, {"gloo", ""}, milliseconds(5000));
  peer.join();
  CHECK(detail::arrivals_problem(arrivals) == "rank 0: no GPU here");
}

TEST_CASE("an address that does not resolve", "[rendezvous][errors]") {
  auto env = read(with(kRank1Of2, "MASTER_ADDR", "no-such-host.invalid"));
  CHECK_THROWS_WITH(detail::open_store(env, milliseconds(200)),
                    Catch::Contains("\"no-such-host.invalid\" does not "
                                    "resolve"));
}

TEST_CASE("a port in use", "[rendezvous][errors]") {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore taken("127.0.0.1", options);
  auto env = read(with(kRank1Of2, "RANK", "0"));
  env.master_port = taken.getPort();
  CHECK_THROWS_WITH(detail::open_store(env, milliseconds(2000)),
                    Catch::Contains("port is in use"));
}

TEST_CASE("nobody hosts the store", "[rendezvous][errors]") {
  uint16_t port = 0;
  {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    port = c10d::TCPStore("127.0.0.1", options).getPort();
  }
  auto env = read(kRank1Of2);
  env.master_port = port;
  CHECK_THROWS_WITH(
      detail::open_store(env, milliseconds(500)),
      Catch::Contains("rank 1 to reach the store of rank 0 at 127.0.0.1:"));
}

TEST_CASE("store_barrier lets all go or tells", "[rendezvous]") {
  c10d::HashStore store;
  std::vector<std::thread> ranks;
  std::atomic<int> through{0};
  for (int rank = 0; rank < 5; ++rank) {
    ranks.emplace_back([&] {
      through += detail::store_barrier(store, "b", 5, milliseconds(10'000));
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  CHECK(through == 5);
  CHECK_FALSE(detail::store_barrier(store, "alone", 2, milliseconds(10)));
}

TEST_CASE("nobody waits for a rank that is gone", "[rendezvous]") {
  c10d::HashStore store;
  using Ranks = std::vector<int>;
  const auto missing = [&](int timeout) {
    return detail::wait_for_departures(store, 3, milliseconds(timeout));
  };
  CHECK(missing(1) == Ranks{0, 1, 2});
  detail::note_departure(store, 2, 3);
  detail::note_departure(store, 2, 3);  // by another one, too
  detail::note_departure(store, 2, 3);
  CHECK(missing(1) == Ranks{0, 1});
  std::thread rank_1([&] {
    detail::note_departure(store, 1, 3);
    detail::wait_for_departures(store, 3, milliseconds(60'000));
  });
  detail::note_departure(store, 0, 3);
  CHECK(missing(60'000).empty());
  rank_1.join();
}

TEST_CASE("a world of one", "[process_group]") {
  CHECK_FALSE(is_initialized());
  CHECK(rank() == 0);
  CHECK(world_size() == 1);
  barrier();
  CHECK(reduce_tensor(torch::ones({2})).equal(torch::ones({2})));
  CHECK_THROWS_WITH(process_group(),
                    Catch::Contains("call ddp::init_process_group() first"));
  init_process_group(
      ProcessGroupOptions().backend("gloo").worker_env(WorkerEnv()));
  CHECK(is_initialized());
  CHECK(local_device() == torch::kCPU);
  CHECK(process_group()->getSize() == 1);
  CHECK_THROWS_WITH(init_process_group(),
                    Catch::Contains("Expected no process group yet"));
  barrier();
  CHECK(reduce_tensor(torch::ones({2})).equal(torch::ones({2})));
  CHECK(new_group({0})->getSize() == 1);
  CHECK_THROWS_WITH(new_group({0, 0}), Catch::Contains("distinct ranks"));
  CHECK_THROWS_WITH(new_group({1}), Catch::Contains("ranks from 0 to 0"));
  store()->set("key", std::vector<uint8_t>{1});
  CHECK(store()->get("key") == std::vector<uint8_t>{1});
  destroy_process_group();
  destroy_process_group();
  CHECK_FALSE(is_initialized());
}

TEST_CASE("a backend that is none", "[process_group][errors]") {
  const auto init = [](const std::string& backend) {
    init_process_group(
        ProcessGroupOptions().backend(backend).worker_env(WorkerEnv()));
  };
  CHECK_THROWS_WITH(init("mpi"), Catch::Contains("\"nccl\" or \"gloo\""));
  if (!torch::cuda::is_available()) {
    CHECK_THROWS_WITH(init("nccl"), Catch::Contains("LibTorch sees none"));
  }
  CHECK_FALSE(is_initialized());
}

TEST_CASE("reduce_tensor over ranks", "[collectives]") {
  const int size = GENERATE(1, 2, 3, 4);
  run_ranks(size, [&](const Group& group) {
    const double mine = group->getRank() + 1.0;
    const auto input = torch::full({2, 3}, mine).t();
    const double sum = size * (size + 1) / 2.0;
    const auto check = [&](Reduction reduction, double expected) {
      const auto result = reduce_tensor(input, reduction, group);
      TORCH_CHECK(result.allclose(torch::full({3, 2}, expected)), result);
    };
    check(Reduction::mean, sum / size);
    check(Reduction::sum, sum);
    check(Reduction::min, 1);
    check(Reduction::max, size);
    TORCH_CHECK(input.eq(mine).all().item<bool>(), "input changed");
    const auto counts = torch::full({1}, group->getRank(), torch::kLong);
    TORCH_CHECK(reduce_tensor(counts, Reduction::sum, group).item<int64_t>() ==
                size * (size - 1) / 2);
    barrier(group);
  });
  CHECK_THROWS_WITH(reduce_tensor(torch::ones({1}, torch::kLong)),
                    Catch::Contains("use Reduction::sum"));
  CHECK_THROWS_WITH(reduce_tensor(torch::Tensor()),
                    Catch::Contains("an undefined one"));
}

TEST_CASE("texts of all ranks", "[collectives]") {
  const int size = GENERATE(1, 2, 3);
  run_ranks(size, [&](const Group& group) {
    const auto text = [](int rank) {
      return std::string(rank * 5, 'a' + rank);
    };
    const auto texts =
        detail::all_gather_text(*group, torch::kCPU, text(group->getRank()));
    for (int rank = 0; rank < size; ++rank) {
      TORCH_CHECK(texts[rank] == text(rank));
    }
    TORCH_CHECK(all_gather_text(text(group->getRank()), group) == texts);
    TORCH_CHECK(detail::broadcast_text(*group,
                                       torch::kCPU,
                                       group->getRank() == 0 ? "hello" : "") ==
                "hello");
    TORCH_CHECK(detail::broadcast_text(*group, torch::kCPU, "").empty());
  });
}

TEST_CASE("alone, there is one text", "[collectives]") {
  CHECK(all_gather_text("mine") == std::vector<std::string>{"mine"});
}

TEST_CASE("seeds repeat and differ", "[collectives]") {
  auto first = torch::rand({4}, seed_everything(3));
  const auto global = torch::rand({4});
  CHECK(torch::rand({4}, seed_everything(3)).equal(first));
  CHECK(torch::rand({4}).equal(global));
  CHECK_FALSE(torch::rand({4}, seed_everything(4)).equal(first));
}

}  // namespace process_group_test
}  // namespace ddp
