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

#include <array>
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
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddp/base/background_task.h"
#include "ddp/base/job_files/worker_ends.h"
#include "ddp/base/net/tcp.h"
#include "ddp/collectives.h"
#include "ddp/job/backends.h"
#include "ddp/job/detail/batch_threads.h"
#include "ddp/job/detail/job.h"
#include "ddp/job/leave_barrier.h"
#include "ddp/job/meeting.h"
#include "ddp/job/monitored_store.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "test/support/catch.h"
#include "test/support/child.h"
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

TEST_CASE("keys of jobs and attempts are apart", "[rendezvous]") {
  WorkerEnv env;
  env.restart_count = 2;
  CHECK(detail::key_prefix(env, "job") == "ddp/job/attempt_2");
  env.use_agent_store = true;
  CHECK(detail::key_prefix(env, "job") == "ddp/job/attempt_2");
  env.host_count = 2;  // torchrun's agents count independently
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
          Catch::Contains("3 did not: ranks 0, 2-3."));
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

using detail::Departure;

Departure departure(int rank, Departure::How how, int64_t passes) {
  Departure result;
  result.rank = rank;
  result.how = how;
  result.passes = passes;
  return result;
}

/// A store that counts its calls.
class CountingStore : public c10d::PrefixStore {
 public:
  CountingStore()
      : PrefixStore("counted", c10::make_intrusive<c10d::HashStore>()) {}

  using PrefixStore::set;
  using PrefixStore::wait;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++requests;
    PrefixStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++requests;
    return PrefixStore::get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++requests;
    return PrefixStore::add(key, value);
  }
  void wait(const std::vector<std::string>& keys,
            const milliseconds& timeout) override {
    ++requests;
    PrefixStore::wait(keys, timeout);
  }
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override {
    ++requests;
    return PrefixStore::multiGet(keys);
  }

  std::atomic<int> requests{0};
};

TEST_CASE("ranks meet by a few requests each", "[rendezvous]") {
  const int size = GENERATE(1, 2, 9, 40);
  CountingStore store;
  std::vector<std::vector<std::string>> texts(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      texts[static_cast<size_t>(rank)] =
          detail::exchange_texts(store,
                                 rank,
                                 size,
                                 "text of " + std::to_string(rank),
                                 milliseconds(60'000));
    });
  }
  std::vector<std::string> expected;
  for (int rank = 0; rank < size; ++rank) {
    ranks[static_cast<size_t>(rank)].join();
    expected.push_back("text of " + std::to_string(rank));
  }
  for (const auto& heard : texts) {
    CHECK(heard == expected);
  }
  CHECK(store.requests <= 6 * size);
}

const std::string kInVain = "Expected all ranks to take part, but ";

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

TEST_CASE("a departure ends waits at the store", "[departures]") {
  const auto keys = c10::make_intrusive<c10d::HashStore>();
  keys->setTimeout(std::chrono::minutes(10));
  const auto record = std::make_shared<detail::PeerState>();
  const auto store = c10::make_intrusive<detail::MonitoredStore>(
      "part", keys, detail::vain_check(record));
  const auto clone = store->clone();
  using Keys = std::vector<std::string>;
  std::vector<std::future<std::string>> waits;
  waits.push_back(error_of([&] { store->get("missing"); }));
  waits.push_back(error_of([&] { store->wait(Keys{"missing"}); }));
  waits.push_back(error_of(
      [&] { clone->wait(Keys{"missing"}, std::chrono::minutes(10)); }));
  waits.push_back(error_of([&] {
    detail::exchange_texts(*store, 0, 3, "mine", std::chrono::minutes(10));
  }));
  // A rank that leaves by a call is no failure: it has done its part.
  record->add_departure(departure(1, Departure::How::destroyed, 5));
  auto comes = error_of([&] { store->get("later"); });
  store->set("later", std::vector<uint8_t>{1});
  CHECK(within_a_minute(comes) == "none");
  record->add_departure(departure(2, Departure::How::vanished, -1));
  for (auto& wait : waits) {
    CHECK_THAT(within_a_minute(wait),
               Catch::Contains(kInVain) &&
                   Catch::Contains("the process of rank 2 has ended"));
  }
  CHECK(store->get("later") == std::vector<uint8_t>{1});
  CHECK(record->is_told());
}

TEST_CASE("a wait at the store for a rank that is there has its time-out",
          "[departures]") {
  const auto store = c10::make_intrusive<detail::MonitoredStore>(
      "part", c10::make_intrusive<c10d::HashStore>(), [] { return ""; });
  for (const int patience : {1, 200}) {
    CHECK_THROWS_WITH(store->wait({"missing"}, milliseconds(patience)),
                      !Catch::Contains(kInVain));
  }
  store->setTimeout(milliseconds(1));
  CHECK_THROWS_WITH(store->get("missing"), !Catch::Contains(kInVain));
}

/// One of three ranks, which exchanges arrivals with the others.
struct MeetingRank {
  detail::Job job;

  MeetingRank(int rank,
              const c10::intrusive_ptr<c10d::Store>& store,
              const std::string& ends_file) {
    job.env.rank = rank;
    job.env.world_size = 3;
    job.store = store;
    job.joins_in_vain = detail::join_vain_check(job, ends_file);
  }

  void meet() {
    detail::MonitoredStore store("meeting", job.store, job.joins_in_vain);
    detail::exchange_arrivals(
        store, job.env.rank, 3, {"gloo", ""}, std::chrono::minutes(10));
  }
};

TEST_CASE("a rank that ended before it came is named at once", "[departures]") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "ends";
  const auto store = c10::make_intrusive<c10d::HashStore>();
  MeetingRank first(0, store, file);
  MeetingRank of_another_host(2, store, "");
  auto error = error_of([&] { first.meet(); });
  auto error_there = error_of([&] { of_another_host.meet(); });
  detail::add_worker_end(file, {1, "exit code 0"});
  const std::string expected =
      kInVain + "the process of rank 1 has ended (exit code 0) while others";
  CHECK_THAT(within_a_minute(error), Catch::Contains(expected));
  CHECK_THAT(within_a_minute(error_there), Catch::Contains(expected));
}

TEST_CASE("Gloo's ranks do not wait for one that has left", "[departures]") {
  const auto record = std::make_shared<detail::PeerState>();
  const auto keys = c10::make_intrusive<c10d::HashStore>();
  // Keeps both backends: a backend that is destroyed early would break the
  // other's connection.
  std::array<c10::intrusive_ptr<c10d::Backend>, 2> backends;
  const auto connect = [&](int rank) {
    detail::BackendSpec spec;
    spec.in_vain = detail::vain_check(record, {0, 1});
    spec.store =
        c10::make_intrusive<detail::MonitoredStore>("gloo", keys, spec.in_vain);
    spec.rank = rank;
    spec.size = 2;
    spec.timeout = spec.connect_timeout = std::chrono::minutes(10);
    backends.at(rank) = detail::make_gloo_backend(spec);
  };
  const int who = GENERATE(0, 1);
  const bool has_given_its_address = GENERATE(false, true);
  if (has_given_its_address) {
    auto first = error_of([&] { connect(0); });
    auto second = error_of([&] { connect(1); });
    CHECK(within_a_minute(first) == "none");
    CHECK(within_a_minute(second) == "none");
    backends = {};
  }
  auto error = error_of([&] { connect(1 - who); });
  record->add_departure(departure(who, Departure::How::vanished, -1));
  CHECK_THAT(within_a_minute(error),
             Catch::Contains("could not be connected: the process of rank " +
                             std::to_string(who) + " has ended"));
}

TEST_CASE("Gloo's ranks wait connect_timeout for each other, then timeout",
          "[departures]") {
  using Backend = c10::intrusive_ptr<c10d::Backend>;
  const auto keys = c10::make_intrusive<c10d::HashStore>();
  const auto connect = [&](int rank, milliseconds first, milliseconds later) {
    detail::BackendSpec spec;
    spec.in_vain = [] { return ""; };
    spec.store =
        c10::make_intrusive<detail::MonitoredStore>("gloo", keys, spec.in_vain);
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

TEST_CASE("which worker has ended first", "[departures]") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "ends";
  CHECK_FALSE(detail::first_worker_end(file));
  CHECK_FALSE(detail::first_worker_end(""));
  for (const std::string text : {"", "1", "1 exit", "1 exit code 0", "x y\n"}) {
    std::ofstream(file) << text;
    CAPTURE(text);
    CHECK_FALSE(detail::first_worker_end(file));  // the line is incomplete
  }
  std::filesystem::remove(file);
  detail::add_worker_end(file, {12, "SIGKILL"});
  detail::add_worker_end(file, {3, "exit code 0"});
  const auto end = detail::first_worker_end(file);
  REQUIRE(end);
  CHECK(end->rank == 12);
  CHECK(end->how == "SIGKILL");
  detail::add_worker_end(folder / "no" + "/such", {1, "exit code 0"});
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
    // of the same network, but no IPv6 address whose uniqueness is still being
    // tested.
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
    CHECK(detail::wait_until_listening("127.0.0.1", port, patience, [] {
          }).empty());
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
  CHECK_THROWS_WITH(
      detail::open_store(
          env, std::chrono::hours(1), [] { return "rank 0 has ended"; }),
      Catch::Contains("rank 1 to reach the store of rank 0 at 127.0.0.1:") &&
          Catch::Contains(", but rank 0 has ended"));
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
  auto error = error_of([&] {
    detail::open_store(
        env, std::chrono::hours(1), [] { return "rank 0 has ended"; });
  });
  CHECK_THAT(within_a_minute(error), Catch::Contains(", but rank 0 has ended"));
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
  detail::note_departure(store, 2, 3);  // reported by another rank
  detail::note_departure(store, 2, 3);
  CHECK(missing(1) == Ranks{0, 1});
  std::thread rank_1([&] {
    detail::note_departure(store, 1, 3);
    detail::wait_for_departures(store, 3, milliseconds(60'000));
  });
  detail::note_departure(store, 0, 3);
  CHECK(missing(60'000) == Ranks{});
  rank_1.join();
}

TEST_CASE("the wait for all ranks can be ended", "[rendezvous]") {
  c10d::HashStore store;
  detail::note_departure(store, 0, 2);
  std::thread rank_1([&] { detail::end_leave_barrier(store); });
  CHECK(detail::wait_for_departures(store, 2, milliseconds(60'000)) ==
        std::nullopt);
  rank_1.join();
}

TEST_CASE("a departure goes through a line", "[departures]") {
  auto sent = departure(7, Departure::How::threw, 37);
  sent.text = "no space left\non device";
  sent.started = {{"world", 412}, {"group_0", 3}};
  const auto got = detail::departure_of_line(detail::to_line(sent));
  REQUIRE(got);
  CHECK(got->rank == 7);
  CHECK(got->how == Departure::How::threw);
  CHECK(got->passes == 37);
  CHECK(got->text == "no space left on device");
  CHECK(got->started == sent.started);
  const auto bare = departure(0, Departure::How::vanished, -1);
  CHECK(detail::departure_of_line(detail::to_line(bare))->passes == -1);
  sent.text = std::string(100'000, 'x');
  CHECK(detail::departure_of_line(detail::to_line(sent))->text.size() < 1100);
  const auto line = GENERATE("", "x", "1 9 0 0", "1 0 0 5 world", "1 -1 0 0");
  CHECK_FALSE(detail::departure_of_line(line));
}

TEST_CASE("departures in words", "[departures]") {
  using How = Departure::How;
  CHECK(detail::describe(departure(1, How::destroyed, 37), 38) ==
        "rank 1 has left by ddp::destroy_process_group() after 37 backward "
        "passes; this rank has begun 38 backward passes");
  auto threw = departure(2, How::threw, 1);
  threw.text = "out of data";
  CHECK(detail::describe(threw, 1) ==
        "rank 2 has left because of an exception after 1 backward pass; this "
        "rank has begun 1 backward pass; it says: out of data");
  CHECK(detail::describe(departure(0, How::vanished, -1), 0) ==
        "the process of rank 0 has ended without ddp::destroy_process_group(); "
        "this rank has begun 0 backward passes");
}

TEST_CASE("which collectives a rank misses that has left", "[departures]") {
  auto left = departure(1, Departure::How::destroyed, 3);
  left.started = {{"world", 5}};
  CHECK_FALSE(detail::misses_collective(left, "world", 5));
  CHECK(detail::misses_collective(left, "world", 6));
  CHECK(detail::started_more(left, "world", 4));
  CHECK_FALSE(detail::started_more(left, "world", 5));
  CHECK_FALSE(detail::started_more(left, "group_0", 0));
  CHECK(detail::misses_collective(left, "group_0", 1));
}

TEST_CASE("a record of who has left", "[departures]") {
  detail::PeerState record;
  record.note_pass();
  record.note_pass();
  CHECK(record.passes() == 2);
  CHECK_FALSE(record.wait_for_departure({0, 1}, milliseconds(1)));
  std::vector<bool> noted;
  std::thread other([&] {
    noted = {record.add_departure(departure(2, Departure::How::vanished, 1)),
             record.add_departure(departure(1, Departure::How::destroyed, 2)),
             record.add_departure(departure(2, Departure::How::destroyed, 3))};
  });
  CHECK(record.wait_for_departure({0, 1}, milliseconds(60'000))->rank == 1);
  other.join();
  CHECK(noted == std::vector<bool>{true, true, false});
  CHECK(record.departures() == 2);
  CHECK(record.first_departure({0, 1, 2})->rank == 2);
  CHECK(record.wait_for_failure(milliseconds(0))->rank == 2);
  CHECK(record.departure_of(2)->how == Departure::How::vanished);
  CHECK_FALSE(record.departure_of(0));
}

TEST_CASE("a rank that dies after its goodbye has vanished", "[departures]") {
  using How = Departure::How;
  detail::PeerState record;
  auto left = departure(1, How::destroyed, 5);
  left.started["world"] = 7;
  CHECK(record.add_departure(left));
  CHECK_FALSE(record.add_departure(left));
  auto line_ends = departure(1, How::vanished, -1);
  line_ends.has_closed = true;
  CHECK_FALSE(record.is_news(line_ends));
  CHECK_FALSE(record.add_departure(line_ends));
  CHECK(record.departure_of(1)->how == How::destroyed);
  CHECK(record.departure_of(1)->has_closed);
  line_ends.has_closed = false;
  CHECK(record.is_news(line_ends));
  CHECK(record.add_departure(line_ends));
  CHECK_FALSE(record.add_departure(line_ends));
  const auto known = record.departure_of(1);
  CHECK(known->how == How::vanished);
  CHECK(known->passes == 5);
  CHECK(detail::misses_collective(*known, "world", 7));
  CHECK(record.departures() == 1);
  CHECK(record.wait_for_failure(milliseconds(0))->rank == 1);
}

TEST_CASE("jobs at one store have keys of their own", "[rendezvous]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto job_of = [&](int rank) {
    WorkerEnv env;
    env.rank = rank;
    return detail::keys_of_job(store, env, "job");
  };
  job_of(0)->set("key", std::vector<uint8_t>{1});
  CHECK(job_of(1)->get("key") == std::vector<uint8_t>{1});
  CHECK_FALSE(job_of(0)->check({"key"}));
  CHECK_FALSE(job_of(1)->check({"key"}));
}

using Records = std::vector<std::shared_ptr<detail::PeerState>>;

Records make_records(int count) {
  Records records;
  for (int i = 0; i < count; ++i) {
    records.push_back(std::make_shared<detail::PeerState>());
  }
  return records;
}

/// The peer monitors of all ranks, in one process.
std::vector<std::unique_ptr<detail::PeerMonitor>> connect_all(
    const Records& records) {
  c10d::HashStore store;
  std::vector<std::unique_ptr<detail::PeerMonitor>> lines;
  for (const auto& record : records) {
    lines.push_back(std::make_unique<detail::PeerMonitor>(
        store,
        detail::PeerMonitor::Place{static_cast<int>(lines.size()),
                                   static_cast<int>(records.size()),
                                   ""},
        record,
        [] { return false; }));
  }
  return lines;
}

TEST_CASE("ranks hear over lines who leaves", "[departures]") {
  const int size = GENERATE(2, 3, 4);
  const int who = GENERATE(0, 1);
  const auto records = make_records(size);
  auto lines = connect_all(records);
  const bool says = GENERATE(true, false);
  if (says) {
    lines[who]->report(departure(who, Departure::How::destroyed, 5));
  }
  if (!says) {
    lines[who].reset();
  }
  for (int rank = 0; rank < size; ++rank) {
    if (rank != who) {
      const auto heard =
          records[rank]->wait_for_departure({who}, milliseconds(60'000));
      REQUIRE(heard);
      CHECK(heard->how ==
            (says ? Departure::How::destroyed : Departure::How::vanished));
      if (says) {
        CHECK(heard->passes == 5);
      }
    }
  }
}

TEST_CASE("a rank that connects late hears what rank 0 has reported",
          "[departures]") {
  c10d::HashStore store;
  const auto records = make_records(2);
  const auto connect = [&](int rank) {
    return std::make_unique<detail::PeerMonitor>(
        store, detail::PeerMonitor::Place{rank, 2, ""}, records[rank], [] {
          return false;
        });
  };
  const auto rank_0 = connect(0);
  rank_0->report(departure(0, Departure::How::destroyed, 5));
  const auto rank_1 = connect(1);
  const auto heard = records[1]->wait_for_departure({0}, milliseconds(60'000));
  REQUIRE(heard);
  CHECK(heard->passes == 5);
}

TEST_CASE("lines notice a lost host, and no child of a rank has them",
          "[departures]") {
  const auto before = open_descriptors();
  const auto records = make_records(2);
  const auto lines = connect_all(records);
  lines[1]->report(departure(1, Departure::How::destroyed, 5));
  REQUIRE(records[0]->wait_for_departure({1}, milliseconds(60'000)));
  int sockets = 0;
  for (const int fd : open_descriptors()) {
    struct stat status {};
    if (before.count(fd) > 0 || ::fstat(fd, &status) != 0) {
      continue;
    }
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    if (S_ISSOCK(status.st_mode)) {
      ++sockets;
      int is_on = 0;
      socklen_t size = sizeof(is_on);
      REQUIRE(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &is_on, &size) == 0);
      CHECK(is_on == 1);
    }
  }
  CHECK(sockets == 2);
}

std::atomic<int> broken_pipes{0};

TEST_CASE("lines raise no SIGPIPE", "[departures]") {
  auto* const old_action = ::signal(SIGPIPE, [](int) { ++broken_pipes; });
  c10d::HashStore store;
  const auto records = make_records(2);
  {
    detail::PeerMonitor line(
        store, detail::PeerMonitor::Place{0, 2, ""}, records[0], [] {
          return false;
        });
    std::istringstream address(store.get_to_str("lines"));
    std::string host;
    int port = 0;
    address >> host >> port;
    auto rank_1 = detail::connect_to(host, port, std::chrono::seconds(60));
    const std::string text = "hello 1\ngone 1 0 5 0 \n";
    REQUIRE(::send(rank_1.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
    REQUIRE(records[0]->wait_for_departure({1}, milliseconds(60'000)));
    line.stop();  // stops reading, so it misses the peer's close
    rank_1.reset();
    for (int count = 0; count < 10; ++count) {
      line.report(departure(0, Departure::How::destroyed, 5));
    }
  }
  ::signal(SIGPIPE, old_action);
  CHECK(broken_pipes == 0);
}

TEST_CASE("lines do not heed a stranger", "[departures]") {
  c10d::HashStore store;
  const auto records = make_records(2);
  const auto line_of = [&](int rank) {
    return std::make_unique<detail::PeerMonitor>(
        store, detail::PeerMonitor::Place{rank, 2, ""}, records[rank], [] {
          return false;
        });
  };
  const auto rank_0 = line_of(0);
  std::istringstream address(store.get_to_str("lines"));
  std::string host;
  int port = 0;
  address >> host >> port;
  for (const std::string text : {"gone 1 0 0 0 \n",
                                 "hello 0\n",
                                 "hello 2\n",
                                 "hello x\n",
                                 "GET / HTTP/1.1\r\n"}) {
    const auto stranger =
        detail::connect_to(host, port, std::chrono::seconds(60));
    REQUIRE(::send(stranger.get(), text.data(), text.size(), 0) ==
            static_cast<ssize_t>(text.size()));
    pollfd closed{stranger.get(), POLLIN, 0};  // by rank 0
    CHECK(::poll(&closed, 1, 60'000) == 1);
    char end = 0;
    CHECK(::recv(stranger.get(), &end, 1, 0) <= 0);
  }
  auto rank_1 = line_of(1);
  // A rank that reports its departure does not count as vanished.
  rank_1->report(departure(1, Departure::How::destroyed, 5));
  rank_1.reset();
  const auto heard = records[0]->wait_for_departure({1}, milliseconds(60'000));
  REQUIRE(heard);
  CHECK(heard->passes == 5);
  // All ranks have connected, so rank 0 has stopped listening.
  CHECK(detail::connect_to(host, port, std::chrono::seconds(60)).get() == -1);
}

TEST_CASE("lines tell a rank that has closed from one that has died",
          "[departures]") {
  using How = Departure::How;
  c10d::HashStore store;
  const auto records = make_records(3);
  std::vector<std::unique_ptr<detail::PeerMonitor>> lines;
  for (const int rank : {0, 2}) {
    lines.push_back(std::make_unique<detail::PeerMonitor>(
        store, detail::PeerMonitor::Place{rank, 3, ""}, records[rank], [] {
          return false;
        }));
  }
  std::istringstream address(store.get_to_str("lines"));
  std::string host;
  int port = 0;
  address >> host >> port;
  auto rank_1 = detail::connect_to(host, port, std::chrono::seconds(60));
  const bool closes = GENERATE(true, false);
  INFO((closes ? "closes" : "dies"));
  const std::string text =
      std::string("hello 1\ngone 1 0 5 0 \n") + (closes ? "closed\n" : "");
  REQUIRE(::send(rank_1.get(), text.data(), text.size(), 0) ==
          static_cast<ssize_t>(text.size()));
  for (const int rank : {0, 2}) {
    REQUIRE(records[rank]->wait_for_departure({1}, milliseconds(60'000)));
    CHECK(records[rank]->departure_of(1)->how == How::destroyed);
  }
  rank_1.reset();
  if (!closes) {
    for (const int rank : {0, 2}) {
      REQUIRE(records[rank]->wait_for_failure(milliseconds(60'000)));
      CHECK(records[rank]->departure_of(1)->passes == 5);
    }
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + test::kRankPatience;
  while (!records[0]->departure_of(1)->has_closed) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::yield();
  }
  CHECK(records[0]->departure_of(1)->how == How::destroyed);
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
    auto left = departure(1 - job->getRank(), Departure::How::destroyed, 4);
    left.started["world"] = 2;
    job->record()->add_departure(left);
    barrier(job);  // the departed rank took part in this one
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
    TORCH_CHECK(job->record()->is_told());
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

/// A backend with an abort() that lasts until the test ends it.
class SlowAbort : public test::FakeBackend {
 public:
  using FakeBackend::FakeBackend;
  void abort() override {
    begun.set_value();
    ends.get_future().wait_for(test::kRankPatience);
  }
  std::promise<void> begun;
  std::promise<void> ends;
};

TEST_CASE("departures are passed on while an abort takes long",
          "[departures]") {
  const auto backend = c10::make_intrusive<SlowAbort>(/*size=*/3);
  const auto records = make_records(3);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto job = c10::make_intrusive<detail::MonitoredBackend>(
      backend,
      detail::GroupMembers{"world", {0, 1, 2}},
      std::chrono::seconds(60),
      records[0]);
  std::vector<at::Tensor> tensors{torch::ones({2})};
  job->allreduce(tensors, c10d::AllreduceOptions());
  detail::StuckGroupAborter stuck_groups;
  stuck_groups.add(job);
  std::vector<std::unique_ptr<detail::PeerMonitor>> lines;
  for (int rank = 0; rank < 3; ++rank) {
    lines.push_back(std::make_unique<detail::PeerMonitor>(
        *store,
        detail::PeerMonitor::Place{rank, 3, ""},
        records[rank],
        [&, rank] {
          return rank == 0 && stuck_groups.abort_stuck_groups(*store);
        }));
  }
  const auto end_abort =
      c10::make_scope_exit([&] { backend->ends.set_value(); });
  lines[1]->report(departure(1, Departure::How::destroyed, 4));
  REQUIRE(backend->begun.get_future().wait_for(test::kRankPatience) ==
          std::future_status::ready);
  lines[2]->report(departure(2, Departure::How::threw, 4));
  CHECK(records[1]->wait_for_departure({2}, test::kRankPatience / 2));
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

TEST_CASE("a job where no thread can start", "[departures]") {
  const test::NoMoreThreads none;
  CHECK_THROWS_WITH(
      connect_all(make_records(1)),
      Catch::Contains("rank 0 cannot start the thread that hears of other "
                      "ranks: ") &&
          Catch::Contains("ulimit -a"));
}

TEST_CASE("a group that the program aborts says so", "[departures]") {
  run_ranks(1, [](const Group& group) {
    const auto job = in_job(group);
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
    job->close(detail::MonitoredBackend::End::finish);
  });
}

TEST_CASE("a group that the program aborts ends what waits", "[departures]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> heard;
  const auto errors = test::try_ranks(2, [&](const Group& group) {
    detail::BackendSpec spec;
    spec.store = store;
    spec.rank = group->getRank();
    spec.size = 2;
    spec.timeout = 2 * test::kRankPatience;
    const auto job = in_job(detail::make_gloo_backend(spec));
    if (spec.rank == 1) {
      heard.get_future().wait_for(test::kRankPatience);
      return;
    }
    const auto guard = c10::make_scope_exit([&] { heard.set_value(); });
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

TEST_CASE("Gloo's thread takes no core away, who made it may",
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

TEST_CASE("whether texts are equal", "[collectives]") {
  const int odd = GENERATE(-1, 0, 1, 2);
  for (const std::string text : {"", "a", "a longer text\n"}) {
    run_ranks(3, [&](const Group& group) {
      const auto mine = group->getRank() == odd ? text + "b" : text;
      TORCH_CHECK(detail::are_texts_equal(*group, c10::kCPU, mine) ==
                  (odd < 0));
    });
  }
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
