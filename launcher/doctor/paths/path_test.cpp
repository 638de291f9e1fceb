#include "launcher/doctor/paths/path_test.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "ddp/base/text/number.h"
#include "launcher/base/error.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/overloaded.h"
#include "launcher/doctor/paths/echo_server.h"
#include "launcher/doctor/paths/path_messages.h"
#include "launcher/doctor/paths/path_probe.h"
#include "launcher/doctor/paths/path_test_coordinator.h"
#include "launcher/net/address.h"
#include "launcher/net/connection.h"
#include "launcher/net/endpoint.h"
#include "launcher/net/line_server.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;

// More than a packet of any network, so that the test detects a path that loses
// long packets.
constexpr int64_t kReachBytes = 256 * 1024;
constexpr int64_t kMeasuredBytes = 16 * 1024 * 1024;
constexpr size_t kSpareConnections = 64;

constexpr milliseconds kConnectTime{20'000};
constexpr milliseconds kOneTry{5'000};
constexpr milliseconds kBetweenTries{200};
constexpr milliseconds kPathTestTime{150'000};
constexpr milliseconds kPartingTime{2'000};

constexpr const char* kTryTimer = "path test: next try";
constexpr const char* kEndTimer = "path test: end";
constexpr const char* kRoundTimer = "path test: round";

using Clock = std::chrono::steady_clock;

void write_result(const PathMessage& message) {
  std::fputs(encode_path(message).c_str(), stdout);
  std::fflush(stdout);
}

std::string random_id() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

std::vector<Fd> listen_for_workers(const Endpoint& master) {
  std::vector<Fd> listeners;
  for (const SocketAddress& address : all_own_addresses(master.port)) {
    if (Fd listener = listen_at(address)) {
      listeners.push_back(std::move(listener));
      break;
    }
  }
  if (listeners.empty()) {
    throw LaunchError(kExitFailure,
                      "cannot listen at MASTER_PORT " +
                          std::to_string(master.port) + " (" +
                          std::generic_category().message(errno) +
                          "); end the program that uses it");
  }
  return listeners;
}

/// Sockets and clock of rank 0's PathTestCoordinator.
class CoordinatorServer {
 public:
  CoordinatorServer(EventLoop& loop, const Endpoint& master, int host_count)
      : loop_(loop),
        coordinator_(host_count, Clock::now()),
        guests_(loop,
                listen_for_workers(master),
                2 * static_cast<size_t>(host_count) + kSpareConnections,
                kLongestPathMessage,
                {.on_line =
                     [this](LineServer::Id id, const std::string& line) {
                       return on_line(id, line);
                     },
                 .on_closed =
                     [this](LineServer::Id id, int) {
                       broadcast(coordinator_.on_closed(id, Clock::now()));
                     }}) {
    set_timer();
  }
  ~CoordinatorServer() { loop_.disarm_timer(kRoundTimer); }
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  /// Returns whether the test is over and all workers have closed their
  /// connections, or the time for that has passed.
  bool is_over() const {
    return end_ && (guests_.count() == 0 || Clock::now() >= *end_);
  }
  std::vector<PathMessage> results() const { return coordinator_.results(); }

 private:
  bool on_line(LineServer::Id id, const std::string& line) {
    const auto message = decode_path(line);
    if (!message) {
      return false;
    }
    broadcast(coordinator_.on_message(
        id, guests_.address_here(id), *message, Clock::now()));
    return true;
  }

  void broadcast(const PathTestCoordinator::Broadcasts& messages) {
    for (const PathMessage& message : messages) {
      const std::string line = encode_path(message);
      for (const auto& [connection, rank] : coordinator_.ranks()) {
        guests_.send(connection, line);
      }
    }
    if (coordinator_.is_done() && !end_) {
      end_ = Clock::now() + kPartingTime;
      for (const auto& [connection, rank] : coordinator_.ranks()) {
        guests_.close_after_flush(connection);
      }
    }
    set_timer();
  }

  void set_timer() {
    loop_.arm_timer_at(
        kRoundTimer, end_.value_or(coordinator_.next_deadline()), [this] {
          if (!end_) {
            broadcast(coordinator_.on_time(Clock::now()));
          }
        });
  }

  EventLoop& loop_;
  PathTestCoordinator coordinator_;
  LineServer guests_;
  std::optional<Clock::time_point> end_;
};

/// A worker of the path test and its connection to rank 0.
class PathTest {
 public:
  PathTest(TestedHost host, int rank, int host_count, Endpoint master)
      : master_(std::move(master)),
        hello_{rank, {std::move(host), random_id(), 0}},
        server_(loop_,
                hello_.peer.id,
                2 * static_cast<size_t>(host_count) + kSpareConnections),
        try_until_(Clock::now() + kConnectTime) {
    hello_.peer.port = server_.port();
    if (rank == 0) {
      coordinator_.emplace(loop_, master_, host_count);
    }
    addresses_ = rank == 0 ? addresses_of("127.0.0.1", master_.port)
                           : addresses_of(master_.host, master_.port);
    if (addresses_.empty()) {
      throw LaunchError(kExitFailure,
                        hello_.peer.host.name + " knows no address of " +
                            master_.host +
                            ", which is MASTER_ADDR; check the name service");
    }
  }

  void run() {
    loop_.arm_timer(kEndTimer, kPathTestTime, [this] {
      fail("rank 0 at " + text_of(master_) +
           " has not answered in time; look at the report of its host");
    });
    connect();
    while (!is_over_ || (coordinator_ && !coordinator_->is_over())) {
      loop_.run_once();
    }
    write_results();
  }

 private:
  void connect() {
    Fd socket = begin_to_connect(addresses_[next_address_]);
    connection_ = std::make_unique<Connection>(
        loop_,
        std::move(socket),
        Connection::State::connecting,
        kLongestPathMessage,
        Connection::Handlers{
            .on_open = [this] { say_hello(); },
            .on_lines =
                [this](const std::vector<std::string>& lines) {
                  on_lines(lines);
                },
            .on_closed = [this](int error) { on_closed(error); }});
    loop_.arm_timer(kTryTimer, kOneTry, [this] { on_unreached(ETIMEDOUT); });
  }

  void say_hello() {
    loop_.disarm_timer(kTryTimer);
    is_connected_ = true;
    TestedHost& host = hello_.peer.host;
    // Rank 0 uses a loopback connection, whose address is useless to other
    // hosts.
    if (host.address.empty() && hello_.rank != 0) {
      host.address = numeric_host(own_end(connection_->socket()));
    }
    connection_->send(encode_path(hello_));
    write_result(hello_);
  }

  void on_unreached(int error) {
    connection_.reset();
    next_address_ = (next_address_ + 1) % addresses_.size();
    if (Clock::now() < try_until_) {
      loop_.arm_timer(kTryTimer, kBetweenTries, [this] { connect(); });
      return;
    }
    fail(hello_.peer.host.name + " cannot connect to rank 0 at " +
         text_of(master_) + " (" + std::generic_category().message(error) +
         "): let these hosts connect to each other at all TCP ports, and "
         "check the routes of both");
  }

  void on_closed(int error) {
    if (!is_connected_) {
      on_unreached(error);
    } else if (!is_over_) {
      fail("the connection to rank 0 at " + text_of(master_) +
           " was lost; look at the report of its host");
    }
  }

  void on_lines(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      const auto message = decode_path(line);
      if (!is_over_ && message) {
        std::visit(
            Overloaded{
                [this](const PathPeers& peers) { on_peers(peers); },
                [this](const PathRound& round) { on_round(round.round); },
                [this](const PathEnd& end) { on_end(end); },
                [](const auto&) {}},
            *message);
      }
    }
  }

  void on_peers(const PathPeers& peers) {
    peers_ = peers.peers;
    if (peers_.empty() || static_cast<int>(peers_.size()) <= hello_.rank) {
      fail("a program that is no ddprun answers at " + text_of(master_) +
           "; end it");
      return;
    }
    std::string& first = peers_.front().host.address;
    if (first.empty() && hello_.rank != 0) {
      first = numeric_host(addresses_[next_address_]);
    }
    std::vector<int> others;
    for (int number = 0; number < static_cast<int>(peers_.size()); ++number) {
      if (number != hello_.rank && peer(number).port != 0) {
        others.push_back(number);
      }
    }
    probe(0, others, kReachBytes);
  }

  void on_round(int round) {
    const auto count = static_cast<int>(peers_.size());
    if (count == 0) {
      return;
    }
    const int target = (hello_.rank + round) % count;
    const auto known = paths_.find(target);
    const bool connects =
        known != paths_.end() && known->second.fault == PathFault::none;
    probe(round,
          connects ? std::vector<int>{target} : std::vector<int>(),
          kMeasuredBytes);
  }

  void probe(int round, const std::vector<int>& targets, int64_t bytes) {
    if (targets.empty()) {
      connection_->send(encode_path(PathReport{hello_.rank, round, {}}));
      return;
    }
    former_probes_ = std::move(probes_);
    probes_ = std::make_unique<PathProbes>(
        loop_,
        peers_,
        targets,
        bytes,
        [this, round](const std::vector<PathFacts>& paths) {
          for (const PathFacts& path : paths) {
            paths_[path.to] = merged(paths_[path.to], path);
          }
          if (connection_) {
            connection_->send(
                encode_path(PathReport{hello_.rank, round, paths}));
          }
        });
  }

  void on_end(const PathEnd& end) {
    end_ = end;
    is_over_ = true;
    if (connection_) {
      connection_->finish();
    }
  }

  void fail(const std::string& text) {
    failure_ = text;
    is_over_ = true;
  }

  void write_results() const {
    if (!failure_.empty()) {
      write_result(PathFailure{failure_});
      return;
    }
    if (coordinator_) {
      for (const PathMessage& message : coordinator_->results()) {
        write_result(message);
      }
      return;
    }
    PathReport report{hello_.rank, 0, {}};
    for (const auto& [to, path] : paths_) {
      report.paths.push_back(path);
    }
    write_result(PathPeers{peers_});
    write_result(report);
    write_result(end_);
  }

  const PathPeer& peer(int number) const {
    return peers_[static_cast<size_t>(number)];
  }

  EventLoop loop_;
  Endpoint master_;
  PathHello hello_;
  EchoServer server_;
  std::optional<CoordinatorServer> coordinator_;  // on rank 0 only
  std::vector<SocketAddress> addresses_;          // of rank 0
  size_t next_address_ = 0;
  Clock::time_point try_until_;
  std::unique_ptr<Connection> connection_;
  bool is_connected_ = false;
  std::vector<PathPeer> peers_;
  std::map<int, PathFacts> paths_;  // by target
  std::unique_ptr<PathProbes> probes_;
  // Probes of the previous round, one of which may be on the call stack.
  std::unique_ptr<PathProbes> former_probes_;
  PathEnd end_;
  bool is_over_ = false;
  std::string failure_;
};

int number_of(const Environment& environment, const char* name) {
  const std::string* text = find_variable(environment, name);
  const auto number =
      text == nullptr ? std::nullopt : ddp::detail::parse_number<int>(*text);
  if (!number || *number < 0) {
    throw LaunchError(kExitFailure,
                      std::string("expected a number in ") + name +
                          ", but got " +
                          (text == nullptr ? "none" : "\"" + *text + "\"") +
                          "; ddprun --doctor starts this program");
  }
  return *number;
}

}  // namespace

int run_path_test(const TestedHost& host, const Environment& environment) {
  try {
    const std::string* master = find_variable(environment, "MASTER_ADDR");
    PathTest(host,
             number_of(environment, "RANK"),
             number_of(environment, "WORLD_SIZE"),
             {master == nullptr ? "" : *master,
              number_of(environment, "MASTER_PORT")})
        .run();
  } catch (const LaunchError& error) {
    write_result(PathFailure{error.what()});
  }
  return 0;
}

}  // namespace launcher
