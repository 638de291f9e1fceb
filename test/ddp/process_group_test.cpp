#include "ddp/process_group.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddp/base/background_task.h"
#include "ddp/base/net/tcp.h"
#include "ddp/collectives.h"
#include "ddp/job/backends.h"
#include "ddp/job/detail/job.h"
#include "ddp/job/detail/open_groups.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/rendezvous.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "test/support/catch.h"
#include "test/support/child.h"
#include "test/support/counting_backend.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"
#include "test/support/no_more_threads.h"
#include "test/support/rank_threads.h"
#include "test/support/temporary_folder.h"

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
  // As on Kubernetes: no LOCAL_RANK, two workers per host.
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

/// Runs `wait` on a separate thread and returns its error, or "none".
std::future<std::string> error_of(std::function<void()> wait) {
  return std::async(std::launch::async, [wait = std::move(wait)] {
    try {
      wait();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("none");
  });
}

std::string within_a_minute(std::future<std::string>& error) {
  if (error.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    std::abort();  // an exception would block, too
  }
  return error.get();
}

TEST_CASE("Gloo's ranks wait connect_timeout for each other, then timeout",
          "[departures]") {
  using Backend = c10::intrusive_ptr<c10d::Backend>;
  const auto keys = c10::make_intrusive<c10d::HashStore>();
  const auto connect = [&](int rank, milliseconds first, milliseconds later) {
    detail::BackendSpec spec;
    spec.peer_failure = [] { return ""; };
    spec.store = c10::make_intrusive<c10d::PrefixStore>("gloo", keys);
    spec.rank = rank;
    spec.size = 2;
    spec.connect_timeout = first;
    spec.timeout = later;
    return detail::make_gloo_backend(spec);
  };
  const milliseconds soon(200);
  const milliseconds late(20'000);
  SECTION("to connect") {
    auto error = error_of([&] { connect(0, soon, std::chrono::minutes(10)); });
    CHECK(within_a_minute(error) != "none");
  }
  SECTION("in a collective") {
    std::vector<Backend> ranks(2);
    auto other = error_of([&] { ranks[1] = connect(1, late, soon); });
    ranks[0] = connect(0, late, soon);
    REQUIRE(within_a_minute(other) == "none");
    std::vector<torch::Tensor> tensors{torch::ones({2})};
    CHECK_THROWS_WITH(ranks[0]->allreduce(tensors)->wait(),
                      Catch::Contains("200ms"));
  }
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

// In a job of several hosts the other hosts connect to this address.
TEST_CASE("the address of this host on the route to another one",
          "[rendezvous]") {
  const auto is_loopback = [](const std::string& address) {
    return address.rfind("127.", 0) == 0 || address == "::1";
  };
  CHECK(detail::local_address_towards("") == "127.0.0.1");
  ifaddrs* all = nullptr;
  REQUIRE(::getifaddrs(&all) == 0);
  for (const auto* it = all; it != nullptr; it = it->ifa_next) {
    const auto* address = it->ifa_addr;
    const int family = address == nullptr ? AF_UNSPEC : address->sa_family;
    char text[NI_MAXHOST] = "";
    const bool is_usable =
        (it->ifa_flags & IFF_UP) != 0 &&
        (family == AF_INET || family == AF_INET6) &&
        ::getnameinfo(
            address,
            family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6),
            text,
            sizeof(text),
            nullptr,
            0,
            NI_NUMERICHOST) == 0;
    // Nobody listens at these addresses. The kernel may choose another address
    // of the same network, but no IPv6 address that it still tests for
    // uniqueness.
    if (is_usable && (family == AF_INET || is_loopback(text))) {
      CAPTURE(text);
      const auto local = detail::local_address_towards(text);
      CHECK(is_loopback(local) == is_loopback(text));
      CHECK((local.find(':') == std::string::npos) == (family == AF_INET));
    }
  }
  ::freeifaddrs(all);
}

/// Returns a non-loopback address of this machine, or "" without any.
std::string outer_address() {
  const auto address = detail::local_address_towards("192.0.2.1");
  return address.rfind("127.", 0) == 0 ? "" : address;
}

// As with 127.0.1.1, which Debian assigns to the host's own name.
TEST_CASE("a name that is loopback on its own host alone", "[rendezvous]") {
  CHECK(detail::local_address_towards("127.0.0.1") == "127.0.0.1");
  CHECK(detail::local_address_towards("localhost").find("127.") == 0);
  const auto outer = outer_address();
  if (outer.empty()) {
    WARN("skipped: this machine has only loopback addresses");
    return;
  }
  CHECK(detail::local_address_towards("127.0.1.1").rfind("127.", 0) ==
        std::string::npos);
  auto reserved = detail::reserve_loopback_port();
  auto env = read(with(kRank1Of2, "RANK", "0"));
  env.master_addr = "127.0.1.1";
  env.master_port = reserved.port;
  env.host_count = GENERATE(1, 2);
  INFO(env.host_count << " hosts");
  const auto store = detail::open_store(env, milliseconds(2000));
  const auto from_outside =
      detail::connect_to(outer, reserved.port, std::chrono::seconds(60));
  CHECK(static_cast<bool>(from_outside) == (env.host_count == 2));
}

// A switch that restarts may take half of this time.
TEST_CASE("a bridge of containers is not the address of this host",
          "[rendezvous]") {
  const char* make_links =
      "ip link set lo up && "
      "ip link add bridge type veth peer name container && "
      "ip address add 172.17.0.1/16 dev bridge && "
      "ip link set bridge up && ip link set container up && "
      "ip link add wire type veth peer name switch && "
      "ip address add 10.1.1.5/24 dev wire && "
      "ip link set wire up && ip link set switch up && "
      "ip route add default via 10.1.1.1";
  std::string address;
  std::thread([&] {  // a network namespace belongs to a thread
    if (::unshare(CLONE_NEWNET) == 0 && std::system(make_links) == 0) {
      address = detail::local_address_towards("127.0.1.1");
    }
  })
      .join();
  if (address.empty()) {
    WARN("skipped: network interfaces take the rights of root");
    return;
  }
  CHECK(address == "10.1.1.5");
}

TEST_CASE("a host counts as gone after a minute of silence", "[rendezvous]") {
  const detail::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  detail::keep_alive(socket);
  const auto seconds = [&](int option) {
    int value = 0;
    socklen_t size = sizeof(value);
    ::getsockopt(socket.get(), IPPROTO_TCP, option, &value, &size);
    return value;
  };
  CHECK(seconds(TCP_KEEPIDLE) + seconds(TCP_KEEPCNT) * seconds(TCP_KEEPINTVL) ==
        60);
}

/// Returns the file descriptors of this process, without the one that lists
/// them.
std::set<int> open_descriptors() {
  std::set<int> open;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    open.insert(std::stoi(entry.path().filename()));
  }
  for (auto fd = open.begin(); fd != open.end();) {
    fd = ::fcntl(*fd, F_GETFD) < 0 ? open.erase(fd) : std::next(fd);
  }
  return open;
}

TEST_CASE("connections that fail or end leave no descriptor", "[rendezvous]") {
  const auto nobody = detail::reserve_loopback_port();
  const auto listener = detail::listen_for_ranks("127.0.0.1", 0);
  const int port = detail::port_of(detail::own_end(listener));
  const auto patience = std::chrono::seconds(60);
  const auto before = open_descriptors();
  for (int count = 0; count < 20; ++count) {
    CHECK_FALSE(detail::connect_to("127.0.0.1", nobody.port, patience));
    CHECK(detail::connect_to("127.0.0.1", port, patience));
    CHECK(detail::wait_until_listening("127.0.0.1", port, patience).empty());
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a large world gets the descriptors it needs", "[rendezvous]") {
  const auto soft_limit = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  };
  const auto hard = soft_limit().rlim_max;
  REQUIRE(hard >= 2048);
  const int status = test::status_of_child([&] {
    const rlimit low{256, hard};
    ::setrlimit(RLIMIT_NOFILE, &low);
    detail::allow_connections(1'000'000'000);
    const bool is_bound = soft_limit().rlim_cur == hard;
    ::setrlimit(RLIMIT_NOFILE, &low);
    detail::allow_connections(64);
    const bool is_enough = soft_limit().rlim_cur == 2048;
    detail::allow_connections(1);  // never lowers the limit
    ::_exit(is_bound && is_enough && soft_limit().rlim_cur == 2048 ? 0 : 1);
  });
  CHECK(status == 0);
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

// As behind a firewall that drops packets: a connection attempt never ends.
TEST_CASE("nothing comes back from rank 0's host", "[rendezvous][errors]") {
  const auto listener = detail::listen_for_ranks("127.0.0.1", 0);
  REQUIRE(::listen(listener.get(), 0) == 0);
  auto env = read(kRank1Of2);
  env.master_port = detail::port_of(detail::own_end(listener));
  std::vector<detail::FileDescriptor> waiting;
  for (int count = 0; count < 3; ++count) {  // fills the accept queue
    waiting.push_back(
        detail::connect_to("127.0.0.1", env.master_port, milliseconds(10)));
  }
  auto error = error_of([&] { detail::open_store(env, milliseconds(1500)); });
  CHECK_THAT(within_a_minute(error), Catch::Contains("does a firewall"));
}

c10::intrusive_ptr<detail::MonitoredBackend> in_job(const Group& group) {
  detail::GroupMembers members{"world", {}};
  for (int rank = 0; rank < group->getSize(); ++rank) {
    members.ranks.push_back(rank);
  }
  return c10::make_intrusive<detail::MonitoredBackend>(
      group,
      members,
      std::chrono::seconds(60),
      std::make_shared<detail::PeerState>());
}

TEST_CASE("a collective that a rank has left throws at once", "[departures]") {
  run_ranks(2, [](const Group& group) {
    const auto job = in_job(group);
    TORCH_CHECK(detail::peer_state_of(*job) == job->record());
    TORCH_CHECK(detail::peer_state_of(*group)->departures() == 0);
    barrier(job);
    TORCH_CHECK(job->started() == 1 && !job->departed_member());
    detail::Departure left;
    left.rank = 1 - job->getRank();
    left.passes = 4;
    job->record()->add_departure(left);
    std::string error;
    try {
      barrier(job);
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    TORCH_CHECK(error.find("rank " + std::to_string(left.rank) +
                           " has left by ddp::destroy_process_group() after 4 "
                           "backward passes") != std::string::npos,
                error);
    TORCH_CHECK(job->record()->is_reported());
  });
}

TEST_CASE("a group that was closed lets its backend go", "[departures]") {
  run_ranks(2, [](const Group& group) {
    const auto before = group.use_count();
    const auto job = in_job(group);
    barrier(job);
    TORCH_CHECK(group.use_count() == before + 1);
    job->close(detail::MonitoredBackend::End::finish);
    job->close(detail::MonitoredBackend::End::abort);
    TORCH_CHECK(group.use_count() == before);
    TORCH_CHECK(job->getBackendName() == "gloo");
  });
}

TEST_CASE("a group that is shut down is closed", "[departures]") {
  run_ranks(2, [](const Group& group) {
    const auto before = group.use_count();
    const auto job = in_job(group);
    barrier(job);
    job->shutdown();
    job->shutdown();
    TORCH_CHECK(!job->is_open() && group.use_count() == before);
    std::string error;
    try {
      barrier(job);
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    TORCH_CHECK(error.find("has been destroyed") != std::string::npos, error);
  });
}

TEST_CASE("a group that is shut down is forgotten", "[departures]") {
  detail::OpenGroups groups;
  const auto kept = in_job(c10::make_intrusive<test::FakeBackend>(2));
  groups.add(kept);
  for (int i = 0; i < 100; ++i) {
    const auto job = in_job(c10::make_intrusive<test::FakeBackend>(2));
    groups.add(job);
    job->shutdown();
  }
  CHECK(groups.report().groups.size() == 1);
  REQUIRE(groups.all().size() == 1);
  CHECK(groups.all()[0] == kept);
}

TEST_CASE("a collective that the backend refuses is not counted",
          "[departures]") {
  run_ranks(2, [](const Group& group) {
    const auto job = in_job(group);
    barrier(job);
    std::vector<at::Tensor> tensors{torch::ones({2}), torch::ones({3})};
    bool has_thrown = false;
    try {
      job->allreduce(tensors, c10d::AllreduceOptions());
    } catch (const std::exception&) {
      has_thrown = true;
    }
    TORCH_CHECK(has_thrown && job->started() == 1, job->started());
  });
}

TEST_CASE("a barrier of a group of GPUs uses the bound one", "[departures]") {
  struct Asked : test::FakeBackend {
    using FakeBackend::FakeBackend;
    c10::intrusive_ptr<c10d::Work> barrier(
        const c10d::BarrierOptions& options) override {
      ids.push_back(options.device_ids);
      return c10::make_intrusive<test::DoneWork>(at::Tensor());
    }
    std::vector<std::vector<int64_t>> ids;
  };
  const auto asked = c10::make_intrusive<Asked>(/*size=*/2);
  const auto job = in_job(asked);
  job->setBoundDeviceId(c10::Device(c10::kCUDA, 3));
  job->barrier(c10d::BarrierOptions());
  c10d::BarrierOptions other;
  other.device_ids = {1};
  job->barrier(other);
  CHECK(asked->ids == std::vector<std::vector<int64_t>>{{3}, {1}});
}

TEST_CASE("an aborted group is let go where no thread can start",
          "[departures]") {
  const auto backend = c10::make_intrusive<test::FakeBackend>(1);
  const auto job = in_job(backend);
  const test::NoMoreThreads none;
  job->close(detail::MonitoredBackend::End::abort);
  CHECK(backend.use_count() == 1);
}

/// A backend of GPUs with failed work.
struct FailedBackend : test::FakeBackend {
  explicit FailedBackend(int& aborts) : FakeBackend(1), aborts(aborts) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void waitForPendingWorks() override { TORCH_CHECK(false, "no luck"); }
  void abort() override { ++aborts; }
  int& aborts;
};

TEST_CASE("a group with failed work is aborted at its end", "[departures]") {
  int aborts = 0;
  const auto group = in_job(c10::make_intrusive<FailedBackend>(aborts));
  const bool leaves_job = GENERATE(false, true);
  if (leaves_job) {
    detail::Job job;
    job.groups.add(group);
    CHECK_THAT(detail::leave(job), Catch::Contains("no luck"));
  } else {
    group->shutdown();
  }
  CHECK(group->is_closed());
  CHECK(aborts == 1);
}

TEST_CASE("a group that the program aborts says so", "[departures]") {
  run_ranks(1, [](const Group& group) {
    const auto job = c10::make_intrusive<detail::MonitoredBackend>(
        group,
        detail::GroupMembers{"group_0", {5}},
        std::chrono::seconds(60),
        std::make_shared<detail::PeerState>());
    job->abort();
    std::vector<at::Tensor> tensors{torch::ones({2})};
    std::string error;
    try {
      job->allreduce(tensors, c10d::AllreduceOptions());
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    TORCH_CHECK(
        error.find("the program has aborted the group") != std::string::npos,
        error);
    TORCH_CHECK(error.find("rank 5: ") == 0, error);  // its number in the job
    job->close(detail::MonitoredBackend::End::finish);
  });
}

TEST_CASE("a group that the program aborts ends waits", "[departures]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> connected;
  std::promise<void> heard;
  const auto errors = test::try_ranks(2, [&](const Group& group) {
    detail::BackendSpec spec;
    spec.store = store;
    spec.rank = group->getRank();
    spec.size = 2;
    spec.timeout = 2 * test::kRankPatience;
    const auto job = in_job(detail::make_gloo_backend(spec));
    if (spec.rank == 1) {
      connected.set_value();
      heard.get_future().wait_for(test::kRankPatience);
      return;
    }
    const auto guard = c10::make_scope_exit([&] { heard.set_value(); });
    connected.get_future().wait_for(test::kRankPatience);
    std::vector<at::Tensor> tensors{torch::ones({2})};
    const auto work = job->allreduce(tensors, c10d::AllreduceOptions());
    job->abort();
    detail::wait(work, *job, "an all-reduce");
  });
  CHECK_THAT(errors[0],
             Catch::Contains("rank 0: an all-reduce failed: the program has "
                             "aborted the group"));
  CHECK(errors[1] == "");
}

TEST_CASE("a time-out is called one", "[departures]") {
  const auto errors = test::try_ranks(2, [](const Group& group) {
    const auto job = in_job(group);
    job->setTimeout(milliseconds(300));
    TORCH_CHECK(group->getBackendOptions()->timeout == milliseconds(300));
    if (group->getRank() == 0) {
      reduce_tensor(torch::ones({2}), Reduction::sum, job);
    }
  });
  CHECK_THAT(errors[0],
             Catch::Contains("rank 0: reduce_tensor timed out") &&
                 Catch::Contains("time-out of 0.3") &&
                 !Catch::Contains("has left"));
}

TEST_CASE("a connection that the kernel gives up is no time-out",
          "[departures]") {
  const test::FakeBackend group(2);
  CHECK_THROWS_WITH(
      detail::fail_collective(
          group, "barrier", "Read error [10.1.1.5]:4711: Connection timed out"),
      Catch::Contains("barrier failed, most likely because another rank has "
                      "left: Read error"));
}

TEST_CASE("the thread of a background task blocks all signals",
          "[process_group]") {
  sigset_t blocked{};
  detail::BackgroundTask task;
  task.start([&] {
    TORCH_CHECK(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0);
  });
  REQUIRE(task.finish(test::kRankPatience));
  CHECK(::sigismember(&blocked, SIGTERM));
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

/// Returns the scheduling policy of each thread of this process, by thread id.
std::map<int, int> policies_of_threads() {
  std::map<int, int> policies;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/self/task")) {
    const int id = std::stoi(thread.path().filename());
    policies[id] = ::sched_getscheduler(id);
  }
  return policies;
}

TEST_CASE("Gloo's thread is of SCHED_BATCH, the thread that made it is not",
          "[process_group]") {
  const auto before = policies_of_threads();
  detail::BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::HashStore>();
  spec.timeout = spec.connect_timeout = std::chrono::seconds(30);
  const auto backend = detail::make_gloo_backend(spec);
  std::vector<int> new_batch_threads;
  for (const auto& [id, policy] : policies_of_threads()) {
    if (before.count(id) == 0 && policy == SCHED_BATCH) {
      new_batch_threads.push_back(id);
    }
  }
  CHECK(new_batch_threads.size() == 1);
  CHECK(::sched_getscheduler(0) == SCHED_OTHER);
}

TEST_CASE("a thread of the user's policy keeps it", "[process_group]") {
  std::vector<int> policies;
  // A separate thread, because some systems do not let a thread leave
  // SCHED_IDLE.
  std::thread([&] {
    const sched_param no_priority{};
    ::sched_setscheduler(0, SCHED_IDLE, &no_priority);
    {
      const detail::BatchThreadsGuard guard;
      policies.push_back(::sched_getscheduler(0));
    }
    policies.push_back(::sched_getscheduler(0));
  }).join();
  CHECK(policies == std::vector{SCHED_IDLE, SCHED_IDLE});
}

TEST_CASE("time limits without end, and that are none", "[process_group]") {
  const auto init = [](milliseconds limit) {
    init_process_group(ProcessGroupOptions()
                           .backend("gloo")
                           .timeout(limit)
                           .connect_timeout(limit)
                           .worker_env(WorkerEnv()));
  };
  init(milliseconds::max());
  barrier();
  destroy_process_group();
  run_ranks(2, [](const Group& group) {
    const auto job = in_job(group);
    job->setTimeout(milliseconds::max());
    barrier(job);
  });
  CHECK_THROWS_WITH(init(milliseconds(0)),
                    Catch::Contains("timeout to be positive, but got 0 ms"));
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
    const auto texts = detail::all_gather_text(
        *group, torch::kCPU, text(group->getRank()), "a test");
    for (int rank = 0; rank < size; ++rank) {
      TORCH_CHECK(texts[rank] == text(rank));
    }
    TORCH_CHECK(all_gather_text(text(group->getRank()), group) == texts);
    TORCH_CHECK(detail::broadcast_text(*group,
                                       torch::kCPU,
                                       group->getRank() == 0 ? "hello" : "",
                                       "a test") == "hello");
    TORCH_CHECK(
        detail::broadcast_text(*group, torch::kCPU, "", "a test").empty());
  });
}

TEST_CASE("lines that differ are listed by ranks", "[collectives]") {
  using Lines = std::vector<std::string>;
  const auto verify = [](const std::vector<Lines>& lines,
                         const Lines& problems) {
    return test::try_ranks(3, [&](const Group& group) {
      const int rank = group->getRank();
      detail::verify_across_ranks(*group,
                                  c10::kCPU,
                                  lines.at(rank),
                                  "things",
                                  "change them",
                                  problems.at(rank));
    });
  };
  const auto [lines, problems, expected] =
      GENERATE(table<std::vector<Lines>, Lines, std::string>({
          {{{}, {}, {}}, {"", "", ""}, ""},
          {{{"a", "b"}, {"a", "b"}, {"a", "b"}}, {"", "", ""}, ""},
          {{{"a", "b"}, {"a", "c"}, {"a", "b"}},
           {"", "", ""},
           "Expected the same things on all ranks, but got on ranks 0, 2: b; "
           "on rank 1: c; change them"},
          {{{"a"}, {"a", "b"}, {"a"}},
           {"", "", ""},
           "Expected the same things on all ranks, but got on ranks 0, 2: "
           "nothing; on rank 1: b; change them"},
          {{{"a"}, {"b"}, {"c"}}, {"", "lost", "lost"}, "on ranks 1-2: lost"},
          {{{}, {}, {}}, {"lost", "lost", "lost"}, "on ranks 0-2: lost"},
      }));
  for (const auto& error : verify(lines, problems)) {
    CHECK(error == expected);
  }
}

TEST_CASE("ranks send one of the differing lines", "[collectives]") {
  run_ranks(3, [](const Group& group) {
    test::CountingBackend counted(group);
    std::vector<std::string> lines(1000, "a line that all ranks have");
    lines[700] += std::to_string(group->getRank());
    std::string error;
    try {
      detail::verify_across_ranks(
          counted, c10::kCPU, lines, "things", "change them");
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    TORCH_CHECK(error.find("on rank 1: a line that all ranks have1;") !=
                    std::string::npos,
                error);
    const auto sent = counted.take();
    TORCH_CHECK(sent.broadcast > 20'000 && sent.broadcast < 40'000,
                sent.broadcast);
    TORCH_CHECK(sent.all_gather < 200, sent.all_gather);
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
