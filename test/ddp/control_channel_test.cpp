// The control channel between the ranks of a job and rank 0.
#include "ddp/job/detail/control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <future>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/base/net/tcp.h"
#include "ddp/base/text/record.h"
#include "test/support/catch.h"
#include "test/support/no_more_threads.h"
#include "test/support/rank_threads.h"

namespace ddp {
namespace control_channel_test {

using Catch::Contains;
using detail::ControlChannel;
using detail::DeadWaits;
using detail::Departure;
using detail::RankReport;
using std::chrono::milliseconds;
using End = ControlChannel::End;
using How = Departure::How;

constexpr milliseconds kPatience{60'000};

/// One rank of a job that has only a channel.
struct Rank {
  Rank(c10d::Store& store, int rank, int size)
      : channel(std::make_unique<ControlChannel>(
            store,
            ControlChannel::Place{rank, size, ""},
            state,
            ControlChannel::Callbacks{[this] {
                                        const std::lock_guard lock(mutex);
                                        ++reports;
                                        return report;
                                      },
                                      [] { return false; },
                                      [this](const DeadWaits& dead) {
                                        const std::lock_guard lock(mutex);
                                        error = dead.error;
                                        report = {};
                                        if (leaves_on_error) {
                                          channel->leave(milliseconds(0));
                                        }
                                        return true;
                                      }})) {}

  void does(RankReport now) {
    const std::lock_guard lock(mutex);
    report = std::move(now);
  }
  std::string dead_error() {
    const std::lock_guard lock(mutex);
    return error;
  }

  size_t has_reported() {
    const std::lock_guard lock(mutex);
    return reports;
  }

  std::mutex mutex;
  RankReport report;
  size_t reports = 0;  // number of times the channel has asked for it
  std::string error;
  std::atomic<bool> leaves_on_error{false};
  std::shared_ptr<detail::PeerState> state =
      std::make_shared<detail::PeerState>();
  std::unique_ptr<ControlChannel> channel;
};

template <class Condition>
void wait_until(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

struct Address {
  std::string host;
  int port = 0;
  std::string secret;
};

Address address_of(c10d::Store& store) {
  std::istringstream text(store.get_to_str("channel"));
  Address address;
  text >> address.host >> address.port >> address.secret;
  return address;
}

/// The ranks of a job, in one process.
struct World {
  explicit World(int size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<Rank>(store, rank, size));
    }
    const auto address = address_of(store);
    wait_until([&] {  // rank 0 knows all of them and listens no longer
      return !detail::connect_to(address.host, address.port, kPatience);
    });
  }
  Rank& operator[](int rank) { return *ranks.at(static_cast<size_t>(rank)); }

  /// Lets all ranks but `without` leave; returns how their waits end.
  std::vector<End> leave(std::set<int> without = {},
                         milliseconds patience = kPatience) {
    std::vector<std::future<End>> waits;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (without.count(static_cast<int>(rank)) == 0) {
        waits.push_back(std::async(std::launch::async, [this, rank, patience] {
          return ranks[rank]->channel->leave(patience);
        }));
      }
    }
    std::vector<End> ends;
    for (auto& wait : waits) {
      ends.push_back(wait.get());
    }
    return ends;
  }

  c10d::HashStore store;
  std::vector<std::unique_ptr<Rank>> ranks;
};

detail::FileDescriptor connect(const Address& address) {
  auto socket = detail::connect_to(address.host, address.port, kPatience);
  REQUIRE(socket);
  return socket;
}

void send(const detail::FileDescriptor& socket, const std::string& text) {
  REQUIRE(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(text.size()));
}

std::string message(const std::vector<std::string>& fields) {
  return detail::join_fields(fields) + "\n";
}

TEST_CASE("ranks hear of failures and ends", "[channel]") {
  const int size = GENERATE(2, 3, 4);
  const int who = GENERATE(0, 1);
  const bool says = GENERATE(true, false);
  World world(size);
  if (says) {
    world[who].state->note_pass();
    world[who].channel->report_failure("no space left\non device");
  } else {
    world.ranks[static_cast<size_t>(who)].reset();
  }
  for (int rank = 0; rank < size; ++rank) {
    if (rank == who) {
      continue;
    }
    const auto heard = world[rank].state->first_departure({who}, kPatience);
    REQUIRE(heard);
    // The destructor of a channel says that its rank has closed.
    CHECK(heard->how == (says ? How::threw : How::left));
    if (says) {
      CHECK(heard->passes == 1);
      CHECK(heard->text == "no space left on device");
    }
  }
}

TEST_CASE("a rank that fails in a group has left that group alone",
          "[channel]") {
  const int who = GENERATE(0, 1, 2);
  World world(3);
  world[who].state->note_pass();
  world[who].channel->report_failure("no luck", "group_3");
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == who) {
      continue;
    }
    const auto& state = *world[rank].state;
    const auto heard = state.first_departure({0, 1, 2}, kPatience, "group_3");
    REQUIRE(heard);
    CHECK(heard->rank == who);
    CHECK(describe(*heard, 2) ==
          "rank " + std::to_string(who) +
              " has left group group_3 because of an exception after 1 "
              "backward pass; this rank has begun 2 backward passes; it says: "
              "no luck");
    CHECK_FALSE(state.first_departure({0, 1, 2}));
    CHECK_FALSE(state.first_departure({0, 1, 2}, {}, "group_30"));
  }
  SECTION("and may leave the job as others do") {
    for (const auto end : world.leave()) {
      CHECK(end == End::all_are_here);
    }
  }
  SECTION("and may fail as a whole") {
    world[who].channel->report_failure("no disk");
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != who) {
        const auto heard = world[rank].state->first_departure({who}, kPatience);
        REQUIRE(heard);
        CHECK(heard->text == "no disk");
      }
    }
  }
}

TEST_CASE("a departure before any pass says nothing of passes", "[channel]") {
  const Departure dead{1, How::ended, -1, ""};
  const Departure failed{1, How::threw, 0, "no luck"};
  CHECK(describe(dead, 0) ==
        "the process of rank 1 has ended without "
        "ddp::destroy_process_group()");
  CHECK(describe(failed, 0) ==
        "rank 1 has left because of an exception; it says: no luck");
  CHECK_THAT(describe(failed, 1),
             Contains("after 0 backward passes; this rank has begun 1 "));
}

TEST_CASE("a rank has died when its connection ends", "[channel]") {
  c10d::HashStore store;
  Rank rank_0(store, 0, 3);
  Rank rank_2(store, 2, 3);
  const bool closes = GENERATE(true, false);
  INFO((closes ? "closes" : "dies"));
  const auto address = address_of(store);
  auto rank_1 = connect(address);
  send(rank_1,
       message({"hello", "1", address.secret}) +
           (closes ? message({"closed"}) : ""));
  rank_1.reset();
  for (auto* rank : {&rank_0, &rank_2}) {
    const auto heard = rank->state->first_departure({1}, kPatience);
    REQUIRE(heard);
    CHECK(heard->how == (closes ? How::left : How::ended));
  }
}

TEST_CASE("a rank that connects late hears the earlier reports", "[channel]") {
  c10d::HashStore store;
  Rank rank_0(store, 0, 3);
  const int who = GENERATE(0, 1);
  Rank rank_1(store, 1, 3);
  (who == 0 ? rank_0 : rank_1).channel->report_failure("no luck");
  if (who == 1) {
    REQUIRE(rank_0.state->first_departure({1}, kPatience));
  }
  Rank rank_2(store, 2, 3);
  const auto heard = rank_2.state->first_departure({who}, kPatience);
  REQUIRE(heard);
  CHECK(heard->text == "no luck");
}

TEST_CASE("rank 0 fails while ranks are connecting", "[channel]") {
  c10d::HashStore store;
  Rank rank_0(store, 0, 2);
  std::promise<void> begins;
  std::thread fails([&] {
    begins.set_value();
    rank_0.channel->report_failure("no luck");
    rank_0.channel->stop();  // as the process ends
  });
  begins.get_future().wait();
  Rank rank_1(store, 1, 2);
  fails.join();
  rank_0.channel.reset();
  const auto heard = rank_1.state->first_departure({0}, kPatience);
  REQUIRE(heard);
  CHECK(heard->text == "no luck");
}

TEST_CASE("all leave", "[channel]") {
  World world(GENERATE(2, 3, 8));
  for (const auto end : world.leave()) {
    CHECK(end == End::all_are_here);
  }
  for (size_t rank = world.ranks.size(); rank-- > 0;) {
    world.ranks[rank]->channel.reset();
    for (const auto& other : world.ranks) {
      CHECK(other->state->departures() == 0);  // no rank has left too early
    }
  }
}

TEST_CASE("no rank waits for one that has failed", "[channel]") {
  World world(4);
  world[1].channel->report_failure("no luck");
  for (const auto end : world.leave({1})) {
    CHECK(end == End::all_are_here);
  }
}

TEST_CASE("rank 0 names the ranks that do not come", "[channel]") {
  World world(4);
  for (const auto end : world.leave({1, 2}, milliseconds(500))) {
    CHECK(end == End::too_late);
  }
  wait_until([&] {  // rank 3 may have said so late
    return world[0].channel->missing_ranks() == std::vector<int>{1, 2};
  });
}

TEST_CASE("a rank does not wait for rank 0 that has left", "[channel]") {
  World world(3);
  world.ranks[0].reset();
  CHECK(world[1].channel->leave(kPatience) == End::host_is_gone);
  CHECK(world[2].channel->leave(kPatience) == End::host_is_gone);
  world[1].channel->wait_for_rank_0(kPatience);
}

TEST_CASE("a stop request reaches all ranks", "[channel]") {
  World world(3);
  const int who = GENERATE(0, 2);
  world[who].channel->request_stop();
  world[who].channel->request_stop();
  for (const auto& rank : world.ranks) {
    wait_until([&] { return rank->state->stop_vote().votes_to_stop(); });
    CHECK_FALSE(rank->state->stop_vote().is_agreed());
  }
}

RankReport waits_in(const std::string& group,
                    const std::string& what,
                    std::vector<detail::GroupProgress> groups) {
  RankReport report;
  report.waits_long = true;
  report.waits = {{group, "0-1", 1, "allreduce of 8 Float", what}};
  report.groups = std::move(groups);
  return report;
}

TEST_CASE("dead waits end on all ranks", "[channel]") {
  const bool leaves_on_error = GENERATE(false, true);
  World world(3);
  for (const auto& rank : world.ranks) {
    rank->leaves_on_error = leaves_on_error;
  }
  world[0].does(waits_in("a", "reduce_tensor", {{"a", 1, 0}, {"b", 0, 0}}));
  world[1].does(waits_in("b", "barrier", {{"a", 0, 0}, {"b", 1, 0}}));
  for (const auto& rank : world.ranks) {
    wait_until([&] { return !rank->dead_error().empty(); });
    CHECK_THAT(rank->dead_error(),
               Contains("rank 0 waits in reduce_tensor, rank 1 in barrier: "));
  }
  // The error is told once.
  for (const auto end : world.leave()) {
    CHECK(end == End::all_are_here);
  }
}

TEST_CASE("a wait that is short is not reported", "[channel]") {
  World world(2);
  auto report = waits_in("a", "reduce_tensor", {{"a", 1, 0}, {"b", 0, 0}});
  report.waits_long = false;
  world[0].does(report);
  world[1].does(waits_in("b", "barrier", {{"a", 0, 0}, {"b", 1, 0}}));
  world[1].channel->request_stop();  // wakes its thread, which sends the report
  wait_until([&] { return world[0].state->stop_vote().votes_to_stop(); });
  CHECK(world[0].dead_error() == "");
}

TEST_CASE("a rank that leaves makes waits dead", "[channel]") {
  World world(2);
  world[0].does(waits_in("a", "reduce_tensor", {{"a", 1, 0}}));
  world[1].does({});
  CHECK(world[1].channel->leave(kPatience) == End::dead_wait);
  CHECK_THAT(world[1].channel->dead_wait_error(),
             Contains("rank 0 waits in reduce_tensor, rank 1 in "
                      "destroy_process_group"));
}

TEST_CASE("a leaving host is asked for collectives that it never waits for",
          "[channel]") {
  World world(2);
  RankReport report;
  report.groups = {{"a", 1, -1}};
  world[0].does(report);
  report.groups = {{"a", 0, -1}};
  world[1].does(report);
  CHECK(world[1].channel->leave(kPatience) == End::dead_wait);
  // Rank 0 tells the others first.
  wait_until([&] { return !world[0].dead_error().empty(); });
  CHECK_THAT(world[0].dead_error(),
             Contains("has been started by rank 0, but not by rank 1"));
}

/// Returns the file descriptors of this process.
std::set<int> open_descriptors() {
  std::set<int> open;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    open.insert(std::stoi(entry.path().filename()));
  }
  return open;
}

TEST_CASE("the channel notices a lost host, and no child of a rank has it",
          "[channel]") {
  const auto before = open_descriptors();
  World world(2);
  world[1].channel->report_failure("no luck");
  REQUIRE(world[0].state->first_departure({1}, kPatience));
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

TEST_CASE("the channel raises no SIGPIPE", "[channel]") {
  auto* const old_action = ::signal(SIGPIPE, [](int) { ++broken_pipes; });
  c10d::HashStore store;
  {
    Rank rank_0(store, 0, 2);
    const auto address = address_of(store);
    auto rank_1 = connect(address);
    send(rank_1,
         message({"hello", "1", address.secret}) +
             message({"failed", "5", "no luck"}));
    REQUIRE(rank_0.state->first_departure({1}, kPatience));
    rank_0.channel->stop();  // stops reading, so it misses the peer's close
    rank_1.reset();
    for (int count = 0; count < 10; ++count) {
      rank_0.channel->report_failure("no luck");
    }
  }
  ::signal(SIGPIPE, old_action);
  CHECK(broken_pipes == 0);
}

TEST_CASE("the channel does not heed a stranger", "[channel]") {
  c10d::HashStore store;
  Rank rank_0(store, 0, 2);
  const auto address = address_of(store);
  for (const auto& text : {message({"failed", "1", ""}),
                           message({"hello", "0", address.secret}),
                           message({"hello", "2", address.secret}),
                           message({"hello", "x", address.secret}),
                           message({"hello", "1", "a guess"}),
                           message({"hello", "1"}),
                           std::string("GET / HTTP/1.1\r\n")}) {
    const auto stranger = connect(address);
    send(stranger, text);
    pollfd closed{stranger.get(), POLLIN, 0};  // by rank 0
    CHECK(::poll(&closed, 1, 60'000) == 1);
    char end = 0;
    CHECK(::recv(stranger.get(), &end, 1, 0) <= 0);
  }
  Rank rank_1(store, 1, 2);
  rank_1.channel->report_failure("no luck");
  const auto heard = rank_0.state->first_departure({1}, kPatience);
  REQUIRE(heard);
  CHECK(heard->text == "no luck");
  // All ranks have connected, so rank 0 has stopped listening.
  CHECK(detail::connect_to(address.host, address.port, kPatience).get() == -1);
}

TEST_CASE("a job where no thread can start", "[channel]") {
  c10d::HashStore store;
  const test::NoMoreThreads none;
  CHECK_THROWS_WITH(Rank(store, 0, 1),
                    Contains("rank 0 cannot start the thread of the control "
                             "channel: ") &&
                        Contains("ulimit -a"));
}

TEST_CASE("a peer that does not read loses nothing", "[channel]") {
  c10d::HashStore store;
  const auto listener = detail::listen_for_ranks("127.0.0.1", 0);
  REQUIRE(listener);
  const int small = 4096;  // for the socket that is accepted
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  const int port = detail::port_of(detail::own_end(listener));
  const std::string address = "127.0.0.1 " + std::to_string(port) + " secret";
  store.set("channel", {address.begin(), address.end()});
  Rank rank_1(store, 1, 2);
  RankReport report;
  for (int i = 0; i < 2'000; ++i) {
    report.groups.push_back({"group " + std::string(100, 'x'), 1, -1});
  }
  rank_1.does(report);
  const detail::FileDescriptor rank_0(
      ::accept(listener.get(), nullptr, nullptr));
  REQUIRE(rank_0);
  // A socket takes about 4 MB before a send is partial.
  const auto expected = message({"report", to_text(report)});
  const size_t reports = 12'000'000 / expected.size();
  for (size_t i = 0; i < reports; ++i) {
    send(rank_0, message({"ask"}));
  }
  wait_until([&] { return rank_1.has_reported() >= reports; });
  size_t complete = 0;
  std::string unread;
  std::array<char, 1 << 16> piece{};
  while (complete < reports) {
    pollfd polled{rank_0.get(), POLLIN, 0};
    REQUIRE(::poll(&polled, 1, 60'000) == 1);
    const auto size = ::recv(rank_0.get(), piece.data(), piece.size(), 0);
    REQUIRE(size > 0);
    unread.append(piece.data(), static_cast<size_t>(size));
    for (auto end = unread.find('\n'); end != std::string::npos;
         end = unread.find('\n')) {
      const auto line = unread.substr(0, end + 1);
      const bool is_report = line == expected;
      REQUIRE((is_report || line == message({"hello", "1", "secret"})));
      complete += is_report ? 1 : 0;
      unread.erase(0, end + 1);
    }
  }
}

/// Messages and bytes, in both directions.
struct Traffic {
  int64_t messages = 0;
  int64_t bytes = 0;

  void add(const std::string& text) {
    messages += std::count(text.begin(), text.end(), '\n');
    bytes += static_cast<int64_t>(text.size());
  }
};

/// Plays the ranks from 1 on of a world: they connect, leave, and close.
/// Returns the traffic of rank 0.
Traffic play(int size) {
  Traffic traffic;
  c10d::HashStore store;
  Rank rank_0(store, 0, size);
  const auto address = address_of(store);
  std::vector<detail::FileDescriptor> ranks;
  RankReport report;
  report.leaves = true;
  report.groups = {{"world", 100, -1}};
  const auto leaves = message({"report", detail::to_text(report)});
  for (int rank = 1; rank < size; ++rank) {
    const auto hello = message({"hello", std::to_string(rank), address.secret});
    ranks.push_back(connect(address));
    send(ranks.back(), hello);
    traffic.add(hello);
  }
  report.leaves = false;
  rank_0.does(report);
  for (const auto& rank : ranks) {
    send(rank, leaves);
    traffic.add(leaves);
  }
  CHECK(rank_0.channel->leave(kPatience) == End::all_are_here);
  const std::string all_here = message({"all here"});
  for (auto& rank : ranks) {
    std::string heard;
    while (heard.find(all_here) == std::string::npos) {
      pollfd polled{rank.get(), POLLIN, 0};
      REQUIRE(::poll(&polled, 1, 60'000) == 1);
      char piece[4096];
      const auto count = ::recv(rank.get(), piece, sizeof(piece), 0);
      REQUIRE(count > 0);
      heard.append(piece, static_cast<size_t>(count));
    }
    send(rank, message({"closed"}));
    traffic.add(heard + message({"closed"}));
    rank.reset();
  }
  CHECK(rank_0.state->departures() == 0);
  return traffic;
}

TEST_CASE("meeting and leaving cost a constant per rank", "[channel]") {
  detail::allow_connections(16'000);
  const auto small = play(1'000);
  const auto large = play(4'000);
  INFO("1,000 ranks: " << small.messages << " messages, " << small.bytes
                       << " bytes; 4,000 ranks: " << large.messages
                       << " messages, " << large.bytes << " bytes");
  // Numbers of more digits and requests for reports add a little.
  CHECK(large.messages <= 4.5 * static_cast<double>(small.messages));
  CHECK(large.bytes <= 4.5 * static_cast<double>(small.bytes));
  CHECK(large.messages <= 8 * 4'000);
  WARN("1,000 ranks: " << small.messages << " messages, " << small.bytes
                       << " bytes; 4,000 ranks: " << large.messages
                       << " messages, " << large.bytes << " bytes");
}

}  // namespace control_channel_test
}  // namespace ddp
