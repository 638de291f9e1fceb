#include "launcher/doctor/paths/path_test_coordinator.h"

#include <algorithm>

namespace launcher {

PathTestCoordinator::PathTestCoordinator(int host_count, Time now)
    : begin_(now),
      deadline_(now + kHelloTime),
      peers_(static_cast<size_t>(host_count)),
      paths_(static_cast<size_t>(host_count)) {}

PathTestCoordinator::Broadcasts PathTestCoordinator::on_message(
    Connection from,
    const std::string& here,
    const PathMessage& message,
    Time now) {
  Broadcasts broadcasts;
  if (const auto* hello = std::get_if<PathHello>(&message)) {
    add_worker(from, here, *hello);
    if (phase_ == Phase::gathering &&
        static_cast<int>(ranks_.size()) == host_count()) {
      start(broadcasts, now);
    }
  } else if (const auto* report = std::get_if<PathReport>(&message)) {
    add_report(from, *report);
    finish_round(broadcasts, now);
  }
  return broadcasts;
}

void PathTestCoordinator::add_worker(Connection from,
                                     const std::string& here,
                                     const PathHello& hello) {
  if (phase_ != Phase::gathering || hello.rank >= host_count()) {
    return;
  }
  PathPeer& peer = peers_[static_cast<size_t>(hello.rank)];
  if (peer.port != 0 || ranks_.count(from) > 0) {
    return;
  }
  peer = hello.peer;
  ranks_[from] = hello.rank;
  if (hello.rank != 0) {
    own_address_ = here;
  }
}

void PathTestCoordinator::start(Broadcasts& broadcasts, Time now) {
  for (int rank = 0; rank < host_count(); ++rank) {
    PathPeer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.port == 0) {
      peer.host.name = "rank " + std::to_string(rank);
      lost_.push_back(peer.host.name);
    }
  }
  phase_ = Phase::rounds;
  begin_ = now;
  broadcasts.push_back(PathPeers{peers_});
  start_round(0, now);
  finish_round(broadcasts, now);
}

void PathTestCoordinator::start_round(int round, Time now) {
  round_ = round;
  deadline_ = now + kRoundTime;
  for (const auto& [connection, rank] : ranks_) {
    awaited_.insert(rank);
  }
}

void PathTestCoordinator::add_report(Connection from,
                                     const PathReport& report) {
  const auto known = ranks_.find(from);
  if (phase_ != Phase::rounds || known == ranks_.end() ||
      report.rank != known->second || report.round != round_ ||
      awaited_.erase(report.rank) == 0) {
    return;
  }
  auto& paths = paths_[static_cast<size_t>(report.rank)];
  for (const PathFacts& path : report.paths) {
    if (path.to < host_count() && path.to != report.rank) {
      PathFacts& before = paths[path.to];
      before = merged(before, path);
    }
  }
}

void PathTestCoordinator::finish_round(Broadcasts& broadcasts, Time now) {
  if (phase_ != Phase::rounds || !awaited_.empty()) {
    return;
  }
  if (ranks_.empty() || round_ + 1 >= host_count() ||
      now - begin_ > kMeasuringTime) {
    phase_ = Phase::done;
    broadcasts.push_back(PathEnd{lost_});
    return;
  }
  start_round(round_ + 1, now);
  broadcasts.push_back(PathRound{round_});
}

PathTestCoordinator::Broadcasts PathTestCoordinator::on_closed(Connection from,
                                                               Time now) {
  Broadcasts broadcasts;
  if (ranks_.count(from) > 0) {
    lose(from);
    finish_round(broadcasts, now);
  }
  return broadcasts;
}

void PathTestCoordinator::lose(Connection connection) {
  const int rank = ranks_[connection];
  PathPeer& peer = peers_[static_cast<size_t>(rank)];
  ranks_.erase(connection);
  awaited_.erase(rank);
  if (phase_ == Phase::gathering) {
    peer = PathPeer();  // the worker may connect again
  } else if (phase_ == Phase::rounds) {
    lost_.push_back(peer.host.name);
  }
}

PathTestCoordinator::Broadcasts PathTestCoordinator::on_time(Time now) {
  Broadcasts broadcasts;
  if (now < deadline_) {
    return broadcasts;
  }
  if (phase_ == Phase::gathering) {
    start(broadcasts, now);
  } else if (phase_ == Phase::rounds) {
    for (const auto& [connection, rank] : std::map(ranks_)) {
      if (awaited_.count(rank) > 0) {
        lose(connection);
      }
    }
    finish_round(broadcasts, now);
  }
  return broadcasts;
}

std::vector<PathMessage> PathTestCoordinator::results() const {
  PathPeers all{peers_};
  std::string& own_address = all.peers.front().host.address;
  own_address = own_address.empty() ? own_address_ : own_address;
  std::vector<PathMessage> messages{all};
  for (int rank = 0; rank < host_count(); ++rank) {
    PathReport report{rank, 0, {}};
    for (const auto& [to, path] : paths_[static_cast<size_t>(rank)]) {
      report.paths.push_back(path);
    }
    messages.push_back(std::move(report));
  }
  messages.push_back(PathEnd{lost_});
  return messages;
}

}  // namespace launcher
