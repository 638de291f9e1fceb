#include "ddp/job/detail/peer_monitor.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

#include "ddp/base/block_signals.h"
#include "ddp/base/net/tcp.h"
#include "ddp/job/detail/lock_within.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectPatience{10'000};
constexpr milliseconds kPollInterval{100};
constexpr size_t kLongestMessage = size_t{1} << 16;

constexpr const char* kAddress = "lines";
constexpr const char* kHello = "hello ";   // + rank
constexpr const char* kGone = "gone ";     // + departure
constexpr const char* kClosed = "closed";  // the sender has closed its groups

std::string gone(const Departure& departure) {
  return kGone + to_line(departure) + "\n";
}

/// Sends without blocking. Messages are small; if the socket's buffer is full,
/// the peer does not read, and the message is dropped.
void send_text(const FileDescriptor& socket, const std::string& text) {
  ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// Returns the text after `kind`, or std::nullopt for a message of another
/// kind.
std::optional<std::string> text_after(const std::string& message,
                                      const std::string& kind) {
  return message.rfind(kind, 0) == 0
             ? std::optional(message.substr(kind.size()))
             : std::nullopt;
}

int number_in(const std::string& text) {
  int number = -1;
  std::istringstream(text) >> number;
  return number;
}

}  // namespace

PeerMonitor::PeerMonitor(c10d::Store& store,
                         const Place& place,
                         std::shared_ptr<PeerState> record,
                         PollCallback poll)
    : rank_(place.rank),
      world_size_(place.world_size),
      process_(::getpid()),
      record_(std::move(record)),
      poll_(std::move(poll)) {
  open(store, place.reach);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    TORCH_CHECK(false,
                "rank ",
                rank_,
                " cannot start the thread that hears of other ranks: ",
                error.what(),
                "; check ulimit -a and the limits of the cgroup");
  }
}

PeerMonitor::~PeerMonitor() {
  stop();
  poll_ = nullptr;
  for (const auto& [fd, line] : lines_) {
    send_text(line.socket, std::string(kClosed) + "\n");
    ::shutdown(fd, SHUT_RDWR);
  }
}

void PeerMonitor::stop() {
  if (!thread_.joinable()) {
    return;
  }
  ends_ = true;
  // Writes instead of closing the pipe: a forked child may hold its write end
  // open, so closing it would not wake the thread.
  retry_interrupted([this] { return ::write(wake_.write.get(), "", 1); });
  thread_.join();
}

void PeerMonitor::open(c10d::Store& store, const std::string& reach) {
  if (rank_ == 0) {
    const auto host = local_address_towards(reach);
    listener_ = listen_for_ranks(host, 0);
    if (!listener_) {
      TORCH_WARN("rank 0 could not listen on ",
                 host,
                 " (",
                 std::strerror(errno),
                 "), so ranks hear of ranks that leave by time-outs alone");
    }
    const int port = listener_ ? port_of(own_end(listener_)) : 0;
    store.set(kAddress, host + " " + std::to_string(port));
    return;
  }
  const auto where = store.get_to_str(kAddress);
  std::istringstream address(where);
  std::string host;
  int port = 0;
  address >> host >> port;
  auto socket = connect_to(host, port, kConnectPatience);
  if (!socket) {
    TORCH_WARN("rank ",
               rank_,
               " could not connect to rank 0 at ",
               where,
               ", so it hears of ranks that leave by time-outs alone. Does a "
               "firewall close the port?");
    return;
  }
  send_text(socket, kHello + std::to_string(rank_) + "\n");
  add(std::move(socket), 0);
}

void PeerMonitor::report(const Departure& departure) {
  if (::getpid() != process_) {
    return;
  }
  const auto lock = lock_within_a_second(mutex_);
  if (!lock) {
    return;  // a thread that has ended holds the mutex
  }
  reported_ = gone(departure);
  for (const auto& [fd, line] : lines_) {
    send_text(line.socket, reported_);
  }
}

void PeerMonitor::wait_for_rank_0(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(
      lock, timeout, [this] { return rank_ == 0 || lines_.empty(); });
}

void PeerMonitor::run() {
  block_signals();
  bool looks = false;
  int known = 0;
  try {
    while (!ends_) {
      wait_for_news(looks);
      const int departures = record_->departures();
      looks = (looks || departures > known) && poll_();
      known = departures;
    }
  } catch (const std::exception& error) {
    TORCH_WARN("rank ", rank_, " no longer hears who leaves: ", error.what());
  }
}

void PeerMonitor::wait_for_news(bool looks) {
  std::vector<pollfd> polled{{wake_.read.get(), POLLIN, 0},
                             {listener_.get(), POLLIN, 0}};
  for (const auto& [fd, line] : lines_) {
    polled.push_back({fd, POLLIN, 0});
  }
  ::poll(polled.data(),
         polled.size(),
         looks ? static_cast<int>(kPollInterval.count()) : -1);
  if (ends_) {
    return;
  }
  if (polled[1].revents != 0) {
    accept_one();
  }
  for (size_t i = 2; i < polled.size(); ++i) {
    if (polled[i].revents != 0 && !read(lines_.at(polled[i].fd))) {
      on_disconnect(polled[i].fd);
    }
  }
  forward_reports();
}

void PeerMonitor::accept_one() {
  FileDescriptor socket = accept_from(listener_);
  if (socket) {
    add(std::move(socket), -1);
  } else if (errno == EMFILE || errno == ENFILE) {
    pollfd pause{wake_.read.get(), POLLIN, 0};
    ::poll(&pause, 1, static_cast<int>(kPollInterval.count()));
  }
}

void PeerMonitor::add(FileDescriptor socket, int rank) {
  keep_alive(socket);
  const std::lock_guard lock(mutex_);
  auto& line = lines_[socket.get()];
  line.socket = std::move(socket);
  line.rank = rank;
}

/// Returns false if the peer has closed the connection or is no rank of the
/// job.
bool PeerMonitor::read(Line& line) {
  char piece[4096];
  const auto size = retry_interrupted([&] {
    return ::recv(line.socket.get(), piece, sizeof(piece), MSG_DONTWAIT);
  });
  if (size <= 0) {
    return size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  line.unread.append(piece, static_cast<size_t>(size));
  for (auto end = line.unread.find('\n'); end != std::string::npos;
       end = line.unread.find('\n')) {
    if (!on_message(line, line.unread.substr(0, end))) {
      return false;
    }
    line.unread.erase(0, end + 1);
  }
  return line.unread.size() < kLongestMessage;
}

bool PeerMonitor::on_message(Line& line, const std::string& message) {
  if (const auto rank = text_after(message, kHello)) {
    return on_hello(line, number_in(*rank));
  }
  if (message == kClosed) {
    line.has_closed = true;
    return true;
  }
  const auto text = text_after(message, kGone);
  const auto departure = text ? departure_of_line(*text) : std::nullopt;
  if (!departure || !is_trusted(line, *departure)) {
    return false;
  }
  news_.push_back(*departure);
  return true;
}

/// Sends the new peer all departures that were reported before it connected.
bool PeerMonitor::on_hello(Line& line, int rank) {
  if (rank_ != 0 || line.rank >= 0 || rank <= 0 || rank >= world_size_ ||
      !greeted_.insert(rank).second) {
    return false;
  }
  line.rank = rank;
  if (static_cast<int>(greeted_.size()) == world_size_ - 1) {
    listener_.reset();
  }
  std::string text;
  for (const auto& departure : record_->all_departures()) {
    text += gone(departure);
  }
  const std::lock_guard lock(mutex_);
  send_text(line.socket, text + reported_);
  return true;
}

/// Rank 0 may report any departure; other ranks may report only their own.
bool PeerMonitor::is_trusted(const Line& line,
                             const Departure& departure) const {
  return departure.rank >= 0 && departure.rank < world_size_ &&
         (rank_ > 0 || departure.rank == line.rank);
}

void PeerMonitor::on_disconnect(int fd) {
  Departure departure;
  departure.how = Departure::How::vanished;
  {
    const std::lock_guard lock(mutex_);
    const auto line = lines_.extract(fd);
    departure.rank = line.mapped().rank;
    departure.has_closed = line.mapped().has_closed;
  }
  changed_.notify_all();
  if (departure.rank >= 0) {
    news_.push_back(departure);  // ignored if the rank reported its reason
  }
}

/// Forwards first and records afterwards: this process may end as soon as its
/// own threads see the departure.
void PeerMonitor::forward_reports() {
  std::string text;
  for (const auto& departure : news_) {
    if (record_->is_news(departure)) {
      text += gone(departure);
    }
  }
  if (rank_ == 0 && !text.empty()) {
    const std::lock_guard lock(mutex_);
    for (const auto& [fd, line] : lines_) {
      if (line.rank > 0) {
        send_text(line.socket, text);
      }
    }
  }
  for (const auto& departure : news_) {
    if (departure.rank != rank_) {
      record_->add_departure(departure);
    }
  }
  news_.clear();
}

}  // namespace ddp::detail
