#include "launcher/doctor/paths/path_probe.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "launcher/net/address.h"

namespace launcher {
namespace {

constexpr int kPings = 5;
// Less than a Connection buffers.
constexpr int64_t kLinesUnderWay = 12;

constexpr std::chrono::milliseconds kProbeLimit{5'000};

/// Returns a timer name that no other probe has.
std::string next_timer() {
  static uint64_t count = 0;
  return "path probe " + std::to_string(++count);
}

PathFault fault_of(int error) {
  switch (error) {
    case ECONNREFUSED:
      return PathFault::refused;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL:
      return PathFault::unreachable;
    case ETIMEDOUT:
      return PathFault::timed_out;
    default:
      return PathFault::broken;
  }
}

}  // namespace

PathProbe::PathProbe(EventLoop& loop,
                     int number,
                     PathPeer target,
                     int64_t bytes,
                     std::chrono::milliseconds limit,
                     OnDone on_done)
    : loop_(loop),
      number_(number),
      target_(std::move(target)),
      lines_to_send_((bytes + kProbeLine - 1) / kProbeLine),
      on_done_(std::move(on_done)),
      timer_(next_timer()) {
  loop_.arm_timer(timer_, limit, [this] { give_up(); });
  begin();
}

PathProbe::~PathProbe() {
  loop_.disarm_timer(timer_);
}

void PathProbe::begin() {
  const auto addresses = addresses_of(target_.host.address, target_.port);
  errno = EADDRNOTAVAIL;
  Fd socket = addresses.empty() ? Fd() : begin_to_connect(addresses.front());
  connection_ = std::make_unique<Connection>(
      loop_,
      std::move(socket),
      Connection::State::connecting,
      kProbeLine,
      Connection::Handlers{
          .on_open =
              [this] {
                stage_ = Stage::greeting;
                connection_->send(target_.id + "\n");
              },
          .on_lines =
              [this](const std::vector<std::string>& lines) {
                this->on_lines(lines);
              },
          .on_closed = [this](int error) { end_by_error(error); }});
}

void PathProbe::on_lines(const std::vector<std::string>& lines) {
  if (lines.empty()) {
    return;
  }
  if (stage_ == Stage::greeting) {
    if (lines.front() != target_.id + "\n") {
      end(PathFault::stranger);
      return;
    }
    stage_ = Stage::pinging;
    ping();
    return;
  }
  if (stage_ == Stage::pinging) {
    round_trip_ = std::min(round_trip_, Clock::now() - since_);
    if (++pings_ < kPings) {
      ping();
      return;
    }
    stage_ = Stage::sending;
    since_ = Clock::now();
  } else {
    answered_ += static_cast<int64_t>(lines.size());
  }
  if (answered_ >= lines_to_send_) {
    end(PathFault::none);
    return;
  }
  fill_window();
}

void PathProbe::ping() {
  since_ = Clock::now();
  connection_->send("\n");
}

void PathProbe::fill_window() {
  static const std::string line = std::string(kProbeLine - 1, '.') + "\n";
  const int64_t end = std::min(answered_ + kLinesUnderWay, lines_to_send_);
  for (; sent_ < end; ++sent_) {
    connection_->send(line);
  }
}

void PathProbe::end_by_error(int error) {
  if (stage_ == Stage::connecting) {
    const PathFault fault = fault_of(error);
    end(fault, std::generic_category().message(error));
  } else if (stage_ == Stage::greeting && error == 0) {
    end(PathFault::stranger);
  } else {
    end(PathFault::broken,
        error == 0 ? "the other end has closed it"
                   : std::generic_category().message(error));
  }
}

void PathProbe::give_up() {
  switch (stage_) {
    case Stage::connecting:
      end(PathFault::timed_out);
      break;
    case Stage::greeting:
      end(PathFault::stranger);
      break;
    case Stage::pinging:
      end(PathFault::broken, "answers have stopped");
      break;
    case Stage::sending:
      end(answered_ == 0 ? PathFault::stalled : PathFault::none);
      break;
  }
}

void PathProbe::end(PathFault fault, const std::string& error) {
  loop_.disarm_timer(timer_);
  PathFacts facts{.to = number_, .fault = fault, .error = error};
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  if (fault == PathFault::none) {
    facts.round_trip_seconds = seconds(round_trip_);
    const double time = seconds(Clock::now() - since_);
    if (answered_ > 0 && time > 0) {
      facts.bytes_per_second =
          static_cast<double>(answered_) * kProbeLine / time;
    }
  }
  connection_.reset();
  const OnDone on_done = on_done_;
  on_done(facts);
}

PathProbes::PathProbes(EventLoop& loop,
                       const std::vector<PathPeer>& peers,
                       const std::vector<int>& targets,
                       int64_t bytes,
                       OnDone on_done)
    : left_(targets.size()), on_done_(std::move(on_done)) {
  for (const int target : targets) {
    all_.push_back(
        std::make_unique<PathProbe>(loop,
                                    target,
                                    peers[static_cast<size_t>(target)],
                                    bytes,
                                    kProbeLimit,
                                    [this](const PathFacts& path) {
                                      paths_.push_back(path);
                                      if (--left_ == 0) {
                                        on_done_(paths_);
                                      }
                                    }));
  }
}

}  // namespace launcher
