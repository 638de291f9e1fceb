#include "ddp/job/detail/control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <system_error>
#include <tuple>
#include <utility>

#include "ddp/base/block_signals.h"
#include "ddp/base/net/tcp.h"
#include "ddp/base/text/record.h"
#include "ddp/job/detail/lock_within.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectPatience{10'000};
constexpr milliseconds kTick{1'000};
/// Pause between two attempts to end waits for departed ranks, and between two
/// messages with departures.
constexpr milliseconds kShortPause{100};
/// Pause between two decisions of rank 0.
constexpr milliseconds kDecisionPause{500};
/// Time limit for the reports of the other ranks that take part in a dead wait.
constexpr milliseconds kReportPatience{2'000};
/// Time for which a rank waits in `leave` before rank 0 asks the others for
/// reports.
constexpr milliseconds kAskPause{3'000};
/// Time to send the rest of the messages when a process ends.
constexpr milliseconds kFlushPatience{1'000};
constexpr size_t kLongestMessage = size_t{1} << 26;
constexpr size_t kLongestText = 1000;
/// Rank 0 passes on at most this number of exception texts.
constexpr int kMostTexts = 16;

constexpr const char* kAddress = "channel";
// To rank 0:
constexpr const char* kHello = "hello";    // rank, secret
constexpr const char* kFailed = "failed";  // passes, text, group
constexpr const char* kReport = "report";  // RankReport
// From rank 0:
constexpr const char* kGone = "gone";  // how, ranks, passes, text, group
constexpr const char* kDead = "dead";  // error, groups...
constexpr const char* kAsk = "ask";    // for a report
constexpr const char* kAllHere = "all here";
// Both:
constexpr const char* kClosed = "closed";  // the sender has closed its groups
constexpr const char* kStop = "stop";

std::string shortened(std::string text) {
  if (text.size() > kLongestText) {
    text.resize(kLongestText);
    text += "...";
  }
  return text;
}

template <class Number>
Number number_in(const std::string& text) {
  Number number = -1;
  std::istringstream(text) >> number;
  return number;
}

std::string new_secret() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

bool passed(std::chrono::steady_clock::time_point since, milliseconds pause) {
  return std::chrono::steady_clock::now() - since >= pause;
}

}  // namespace

ControlChannel::ControlChannel(c10d::Store& store,
                               const Place& place,
                               std::shared_ptr<PeerState> state,
                               Callbacks callbacks)
    : rank_(place.rank),
      world_size_(place.world_size),
      process_(::getpid()),
      state_(std::move(state)),
      callbacks_(std::move(callbacks)),
      stages_(place.rank == 0 ? static_cast<size_t>(place.world_size) : 0) {
  for (const auto* end : {&wake_.read, &wake_.write}) {
    ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
  open(store, place.interface_hint);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    TORCH_CHECK(false,
                "rank ",
                rank_,
                " cannot start the thread of the control channel: ",
                error.what(),
                "; check ulimit -a and the limits of the cgroup");
  }
}

ControlChannel::~ControlChannel() {
  stop();
  callbacks_ = {};
  const std::lock_guard lock(mutex_);
  for (auto& [fd, connection] : connections_) {
    send(connection, {kClosed});
  }
  flush_all(kFlushPatience);
  for (const auto& [fd, connection] : connections_) {
    ::shutdown(fd, SHUT_RDWR);
  }
}

void ControlChannel::stop() {
  if (thread_.joinable()) {
    ends_ = true;
    wake();
    thread_.join();
  }
}

/// Writes instead of closing the pipe: a forked child may hold its write end
/// open, so closing it would not wake the thread.
void ControlChannel::wake() {
  retry_interrupted([this] { return ::write(wake_.write.get(), "", 1); });
}

void ControlChannel::open(c10d::Store& store,
                          const std::string& interface_hint) {
  if (rank_ > 0) {
    connect(store.get_to_str(kAddress), interface_hint);
    return;
  }
  const auto host = local_address_towards(interface_hint);
  listener_ = listen_for_ranks(host, 0);
  TORCH_CHECK(listener_,
              "Expected rank 0 to listen on ",
              host,
              " for the control channel of the job, but it cannot: ",
              std::strerror(errno));
  secret_ = new_secret();
  store.set(
      kAddress,
      host + " " + std::to_string(port_of(own_end(listener_))) + " " + secret_);
}

void ControlChannel::connect(const std::string& where,
                             const std::string& interface_hint) {
  std::istringstream address(where);
  std::string host;
  int port = 0;
  address >> host >> port >> secret_;
  auto socket = connect_to(host, port, kConnectPatience);
  if (!socket && !interface_hint.empty()) {
    // This rank has reached the store at `interface_hint`. `host` may be an
    // interface of rank 0's host that other hosts do not see.
    socket = connect_to(interface_hint, port, kConnectPatience);
  }
  TORCH_CHECK(socket,
              "Expected rank ",
              rank_,
              " to connect to rank 0 at ",
              host,
              " port ",
              port,
              ", but it cannot. Does a firewall close the ports between the "
              "hosts?");
  add(std::move(socket), 0);
  send(*host_connection(), {kHello, std::to_string(rank_), secret_});
}

ControlChannel::Connection* ControlChannel::host_connection() {
  const bool has_one = rank_ > 0 && !connections_.empty();
  return has_one ? &connections_.begin()->second : nullptr;
}

void ControlChannel::report_failure(const std::string& text,
                                    const std::string& group) noexcept {
  if (::getpid() != process_) {
    return;
  }
  try {
    auto lock = lock_within_a_second(mutex_);
    if (!lock) {
      return;  // a thread that has ended holds the mutex
    }
    const auto passes = std::to_string(state_->passes());
    if (rank_ > 0) {
      send_all({kFailed, passes, shortened(text), group});
    } else {
      passed_on_.push_back(
          {kGone,
           std::to_string(static_cast<int>(Departure::How::threw)),
           member_ranges({0}),
           passes,
           shortened(text),
           group});
      send_all(passed_on_.back());
      changed_.wait_for(
          lock, kFlushPatience, [this] { return have_all_met(); });
    }
    flush_all(kFlushPatience);
  } catch (...) {
    // Out of memory: the process ends without a report.
  }
}

void ControlChannel::request_stop() {
  if (!stops_.exchange(true)) {
    sends_stop_ = true;
    wake();
  }
}

ControlChannel::End ControlChannel::leave(milliseconds patience) {
  leaves_ = true;
  wake();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return end_.has_value(); });
  return end_.value_or(End::too_late);
}

std::string ControlChannel::dead_wait_error() const {
  const std::lock_guard lock(mutex_);
  return dead_wait_error_;
}

std::vector<int> ControlChannel::missing_ranks() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> missing;
  for (size_t rank = 0; rank < stages_.size(); ++rank) {
    if (stages_[rank] == Stage::works) {
      missing.push_back(static_cast<int>(rank));
    }
  }
  return missing;
}

void ControlChannel::wait_for_rank_0(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(
      lock, timeout, [this] { return rank_ == 0 || connections_.empty(); });
}

void ControlChannel::run() {
  block_signals();
  int known = 0;
  try {
    while (!ends_) {
      wait_for_news();
      if (ends_) {
        return;
      }
      if (sends_stop_.exchange(false)) {
        state_->stop_vote().vote_to_stop();
        const std::lock_guard lock(mutex_);
        send_all({kStop});
      }
      report_when_due();
      if (rank_ == 0) {
        pass_news_on();
        decide();
      }
      const int departures = state_->departures();
      has_departed_member_ = (has_departed_member_ || departures > known) &&
                             callbacks_.end_waits_for_departed();
      known = departures;
    }
  } catch (const std::exception& error) {
    TORCH_WARN(
        "rank ", rank_, " no longer receives departures: ", error.what());
  }
}

int ControlChannel::poll_timeout() const {
  const bool is_soon = has_departed_member_ || !news_.empty();
  const bool decides = has_new_reports_ || dead_since_ || leave_began_;
  return static_cast<int>((is_soon   ? kShortPause
                           : decides ? kDecisionPause
                                     : kTick)
                              .count());
}

void ControlChannel::wait_for_news() {
  std::vector<pollfd> polled{{wake_.read.get(), POLLIN, 0},
                             {listener_.get(), POLLIN, 0}};
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [fd, connection] : connections_) {
      const bool sends = !connection.unsent.empty();
      polled.push_back(
          {fd, static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0});
    }
  }
  ::poll(polled.data(), polled.size(), poll_timeout());
  for (char woken[64];
       ::read(wake_.read.get(), woken, sizeof(woken)) == sizeof(woken);) {
  }
  if (ends_) {
    return;
  }
  if (polled[1].revents != 0) {
    accept_all();
  }
  for (size_t i = 2; i < polled.size(); ++i) {
    const auto [fd, events, found] = polled[i];
    if ((found & POLLOUT) != 0) {
      const std::lock_guard lock(mutex_);
      flush(connections_.at(fd));
    }
    if ((found & ~POLLOUT) != 0 && !read(connections_.at(fd))) {
      on_disconnect(fd);
    }
  }
}

void ControlChannel::accept_all() {
  while (FileDescriptor socket = accept_from(listener_)) {
    add(std::move(socket), -1);
  }
  if (errno == EMFILE || errno == ENFILE) {
    pollfd pause{wake_.read.get(), POLLIN, 0};
    ::poll(&pause, 1, static_cast<int>(kShortPause.count()));
  }
}

void ControlChannel::add(FileDescriptor socket, int rank) {
  keep_alive(socket);
  const std::lock_guard lock(mutex_);
  auto& connection = connections_[socket.get()];
  connection.socket = std::move(socket);
  connection.rank = rank;
}

/// Returns false if the peer has closed the connection or is no rank of the
/// job.
bool ControlChannel::read(Connection& connection) {
  char piece[1 << 16];
  const auto size = retry_interrupted([&] {
    return ::recv(connection.socket.get(), piece, sizeof(piece), MSG_DONTWAIT);
  });
  if (size <= 0) {
    return size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  connection.unread.append(piece, static_cast<size_t>(size));
  size_t begin = 0;
  for (auto end = connection.unread.find('\n'); end != std::string::npos;
       end = connection.unread.find('\n', begin)) {
    const auto message = split_fields(
        std::string_view(connection.unread).substr(begin, end - begin));
    begin = end + 1;
    if (!message || message->empty() || !on_message(connection, *message)) {
      return false;
    }
  }
  connection.unread.erase(0, begin);
  return connection.unread.size() < kLongestMessage;
}

bool ControlChannel::on_message(Connection& connection, const Fields& message) {
  if (message[0] == kHello) {
    return on_hello(connection, message);
  }
  if (connection.rank < 0) {
    return false;
  }
  if (message[0] == kClosed) {
    connection.has_closed = true;
    return true;
  }
  if (message[0] == kStop) {
    state_->stop_vote().vote_to_stop();
    if (!stops_.exchange(true) && rank_ == 0) {
      const std::lock_guard lock(mutex_);
      send_all({kStop});
    }
    return true;
  }
  return rank_ == 0 ? on_rank(connection.rank, message) : on_host(message);
}

/// Sends the new peer the reports from before it connected.
bool ControlChannel::on_hello(Connection& connection, const Fields& message) {
  const int rank = message.size() == 3 ? number_in<int>(message[1]) : -1;
  const std::lock_guard lock(mutex_);
  if (rank_ != 0 || connection.rank >= 0 || rank <= 0 || rank >= world_size_ ||
      message[2] != secret_ || !greeted_.insert(rank).second) {
    return false;
  }
  connection.rank = rank;
  for (const auto& gone : passed_on_) {
    send(connection, gone);
  }
  if (stops_) {
    send(connection, {kStop});
  }
  if (have_all_met()) {
    listener_.reset();
    changed_.notify_all();
  }
  return true;
}

/// The caller holds the mutex.
bool ControlChannel::have_all_met() const {
  return static_cast<int>(greeted_.size()) == world_size_ - 1;
}

/// A message of rank 0.
bool ControlChannel::on_host(const Fields& message) {
  const auto& kind = message[0];
  if (kind == kGone && message.size() == 6) {
    Departure departure;
    departure.how = static_cast<Departure::How>(number_in<int>(message[1]));
    departure.passes = number_in<int64_t>(message[3]);
    departure.text = message[4];
    departure.group = message[5];
    for (const int rank : parse_member_ranges(message[2])) {
      departure.rank = rank;
      if (rank != rank_) {
        state_->add_departure(departure);
      }
    }
  } else if (kind == kDead && message.size() > 1) {
    end_dead_waits({message[1], {message.begin() + 2, message.end()}});
  } else if (kind == kAsk) {
    send_report();
  } else if (kind == kAllHere) {
    is_end_announced_ = true;
    end_leave(End::all_are_here);
  } else {
    return false;
  }
  return true;
}

/// A message of another rank to rank 0.
bool ControlChannel::on_rank(int rank, const Fields& message) {
  const auto& kind = message[0];
  if (kind == kFailed && message.size() == 4) {
    add_news({rank,
              Departure::How::threw,
              number_in<int64_t>(message[1]),
              message[2],
              message[3]});
  } else if (kind == kReport && message.size() == 2) {
    auto report = parse_rank_report(message[1]);
    if (!report) {
      return false;
    }
    on_report(rank, *std::move(report));
  } else {
    return false;
  }
  return true;
}

void ControlChannel::on_disconnect(int fd) {
  int rank = -1;
  bool has_closed = false;
  {
    const std::lock_guard lock(mutex_);
    const auto connection = connections_.extract(fd);
    rank = connection.mapped().rank;
    has_closed = connection.mapped().has_closed;
  }
  changed_.notify_all();
  if (rank < 0 || (has_closed && is_end_announced_)) {
    return;  // not a rank, or all ranks have left the job
  }
  add_news({rank,
            has_closed ? Departure::How::left : Departure::How::ended,
            -1,
            ""});
  if (rank_ > 0) {
    pass_news_on();
    end_leave(End::host_is_gone);
  }
}

void ControlChannel::end_leave(End end) {
  {
    const std::lock_guard lock(mutex_);
    if (!end_) {
      end_ = end;
    }
  }
  changed_.notify_all();
}

void ControlChannel::end_dead_waits(const DeadWaits& dead) {
  // The flag is read before the callback throws the error into a wait of this
  // rank. The rank may then leave at once, and must not get the error again.
  const bool leaves = leaves_;
  const bool takes_part = callbacks_.end_dead_waits(dead);
  if (takes_part && leaves) {
    {
      const std::lock_guard lock(mutex_);
      dead_wait_error_ = dead.error;
    }
    end_leave(End::dead_wait);
  }
}

/// Sends the present state of this rank to rank 0.
void ControlChannel::send_report() {
  auto report = callbacks_.report();
  report.leaves = leaves_;
  const auto text = to_text(report);
  last_report_ = report.leaves || report.waits_long ? text : "";
  if (rank_ == 0) {
    on_report(0, std::move(report));
    return;
  }
  const std::lock_guard lock(mutex_);
  send_all({kReport, text});
}

/// Reports a wait that has become long, a change of it, and its end.
void ControlChannel::report_when_due() {
  auto report = callbacks_.report();
  report.leaves = leaves_;
  const bool matters = report.leaves || report.waits_long;
  if (matters ? to_text(report) != last_report_ : !last_report_.empty()) {
    send_report();
  }
}

void ControlChannel::on_report(int rank, RankReport report) {
  {
    const std::lock_guard lock(mutex_);
    auto& stage = stages_[static_cast<size_t>(rank)];
    if (stage == Stage::gone) {
      return;
    }
    if (report.leaves) {
      stage = Stage::leaves;
      leave_began_ = leave_began_.value_or(Clock::now());
    }
  }
  reports_[rank] = std::move(report);
  has_new_reports_ = true;
}

void ControlChannel::set_gone(int rank) {
  if (rank < 0 || rank >= world_size_) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (rank_ == 0) {
    stages_[static_cast<size_t>(rank)] = Stage::gone;
    has_new_reports_ = true;
  }
}

void ControlChannel::add_news(Departure departure) {
  const int rank = departure.rank;
  const bool is_first =
      std::none_of(news_.begin(), news_.end(), [&](const auto& one) {
        return one.rank == rank && one.group == departure.group;
      });
  if (!is_first || state_->departure_of(rank)) {
    return;
  }
  if (departure.group.empty()) {
    set_gone(rank);
    if (departure.how != Departure::How::left) {
      reports_.erase(rank);  // its groups are aborted
    }
  }
  news_.push_back(std::move(departure));
}

/// Passes departures on, several in one message, and records them afterwards:
/// this process may end as soon as its own threads see them.
void ControlChannel::pass_news_on() {
  if (news_.empty() || (rank_ == 0 && !passed(passed_on_at_, kShortPause))) {
    return;
  }
  if (rank_ == 0) {
    std::map<std::tuple<int, int64_t, std::string, std::string>,
             std::vector<int>>
        alike;
    for (auto& one : news_) {
      if (!one.text.empty() && ++texts_ > kMostTexts) {
        one.text.clear();
        one.passes = -1;
      }
      alike[{static_cast<int>(one.how), one.passes, one.text, one.group}]
          .push_back(one.rank);
    }
    const std::lock_guard lock(mutex_);
    for (auto& [key, ranks] : alike) {
      std::sort(ranks.begin(), ranks.end());
      const auto& [how, passes, text, group] = key;
      passed_on_.push_back({kGone,
                            std::to_string(how),
                            member_ranges(ranks),
                            std::to_string(passes),
                            text,
                            group});
      send_all(passed_on_.back());
    }
    passed_on_at_ = Clock::now();
  }
  for (const auto& departure : news_) {
    state_->add_departure(departure);
  }
  news_.clear();
}

bool ControlChannel::is_any(Stage stage) const {
  const std::lock_guard lock(mutex_);
  return std::count(stages_.begin(), stages_.end(), stage) > 0;
}

/// Rank 0 ends the waits in `leave` once all ranks are there, and the waits
/// that can never end.
void ControlChannel::decide() {
  if (is_end_announced_) {
    return;
  }
  const bool all_are_here = !is_any(Stage::works);
  if (!is_any(Stage::leaves)) {
    leave_began_.reset();
  } else if (!all_are_here && passed(*leave_began_, kAskPause) &&
             passed(asked_at_, kAskPause)) {
    asked_at_ = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      send_all({kAsk});
    }
    send_report();
  }
  if (!(all_are_here && has_new_reports_) &&
      (!(has_new_reports_ || dead_since_) ||
       !passed(decided_at_, kDecisionPause))) {
    return;
  }
  decided_at_ = Clock::now();
  has_new_reports_ = false;
  const auto dead = find_dead_waits(reports_);
  if (!dead) {
    dead_since_.reset();
  } else if (all_are_here ||
             (dead_since_ && passed(*dead_since_, kReportPatience))) {
    publish(*dead);
    return;
  } else if (!dead_since_) {
    dead_since_ = decided_at_;
  }
  if (all_are_here) {
    is_end_announced_ = true;
    {
      const std::lock_guard lock(mutex_);
      send_all({kAllHere});
    }
    end_leave(End::all_are_here);
  }
}

void ControlChannel::publish(const DeadWaits& dead) {
  dead_since_.reset();
  Fields message{kDead, dead.error};
  message.insert(message.end(), dead.groups.begin(), dead.groups.end());
  {
    const std::lock_guard lock(mutex_);
    send_all(message);
  }
  for (auto it = reports_.begin(); it != reports_.end();) {
    auto& groups = it->second.groups;
    groups.erase(std::remove_if(groups.begin(),
                                groups.end(),
                                [&](const auto& item) {
                                  return std::count(dead.groups.begin(),
                                                    dead.groups.end(),
                                                    item.group) > 0;
                                }),
                 groups.end());
    it = it->second.leaves ? std::next(it) : reports_.erase(it);
  }
  last_report_.clear();
  end_dead_waits(dead);
}

/// The caller holds the mutex, as in the following functions.
void ControlChannel::send_all(const Fields& message) {
  for (auto& [fd, connection] : connections_) {
    if (connection.rank >= 0) {
      send(connection, message);
    }
  }
}

void ControlChannel::send(Connection& connection, const Fields& message) {
  auto text = join_fields(message);
  std::replace(text.begin(), text.end(), '\n', ' ');  // ends a message
  text += '\n';
  const bool was_empty = connection.unsent.empty();
  connection.unsent += text;
  if (was_empty) {
    flush(connection);
  }
  if (!connection.unsent.empty() &&
      thread_.get_id() != std::this_thread::get_id()) {
    wake();  // the thread sends the rest
  }
}

void ControlChannel::flush(Connection& connection) {
  size_t sent = 0;
  while (sent < connection.unsent.size()) {
    const auto count = retry_interrupted([&] {
      return ::send(connection.socket.get(),
                    connection.unsent.data() + sent,
                    connection.unsent.size() - sent,
                    MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    if (count < 0) {
      // Otherwise the peer is gone, which the thread will read.
      const bool is_full = errno == EAGAIN || errno == EWOULDBLOCK;
      sent = is_full ? sent : connection.unsent.size();
      break;
    }
    sent += static_cast<size_t>(count);
  }
  connection.unsent.erase(0, sent);
}

void ControlChannel::flush_all(milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (auto& [fd, connection] : connections_) {
    flush(connection);
    while (!connection.unsent.empty() && Clock::now() < deadline) {
      pollfd polled{fd, POLLOUT, 0};
      ::poll(&polled, 1, static_cast<int>(kShortPause.count()));
      flush(connection);
    }
  }
}

}  // namespace ddp::detail
