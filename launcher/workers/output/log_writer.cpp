#include "launcher/workers/output/log_writer.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <utility>

#include "launcher/machine/helper.h"

namespace launcher {
namespace {

constexpr size_t kMostOfRequest = 32 * 1024;
constexpr size_t kCongestedQueueBytes = 1024 * 1024;

/// Precedes the bytes of a request. A request with a descriptor opens a file.
struct Header {
  LogWriter::File file;
  uint32_t size;  // of the bytes
  uint32_t closes;
  uint32_t has_lines;  // only in a request with a descriptor
};

struct Answer {
  LogWriter::File file;
  uint32_t size;     // of the request's bytes
  uint32_t written;  // bytes written
  uint32_t closes;
  int error;  // errno; 0: none
};

/// Buffer for the descriptor in a message's control data.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> space;
};

struct OpenFile {
  int fd = -1;
  bool has_lines = false;
  char last_written = '\n';
  bool line_is_torn = false;  // the rest of a line was lost
};

void write_to(int file, std::string_view bytes, Answer& answer) {
  while (answer.written < bytes.size()) {
    const ssize_t size = retry_interrupted([&] {
      const std::string_view rest = bytes.substr(answer.written);
      return ::write(file, rest.data(), rest.size());
    });
    if (size < 0) {
      answer.error = errno;
      return;
    }
    answer.written += static_cast<uint32_t>(size);
  }
}

void write_to(OpenFile& file, std::string_view bytes, Answer& answer) {
  if (file.line_is_torn && !bytes.empty()) {
    Answer newline{};
    write_to(file.fd, "\n", newline);
    file.line_is_torn = newline.error != 0;
  }
  write_to(file.fd, bytes, answer);
  if (answer.written > 0) {
    file.last_written = bytes[answer.written - 1];
  }
  if (answer.error != 0) {
    file.line_is_torn = file.has_lines && file.last_written != '\n';
  }
}

/// Main loop of the writer process; ends when the parent closes its socket.
[[noreturn]] void serve(const Fd& socket) {
  ::prctl(PR_SET_NAME, "ddp-logs");
  std::map<LogWriter::File, OpenFile> files;
  std::array<char, kMostOfRequest> bytes;
  for (;;) {
    Header header{};
    Control control{};
    std::array<iovec, 2> parts{
        {{&header, sizeof(header)}, {bytes.data(), bytes.size()}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_control = &control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = retry_interrupted(
        [&] { return ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC); });
    if (size < static_cast<ssize_t>(sizeof(header))) {
      ::_exit(0);
    }
    if (const cmsghdr* first = CMSG_FIRSTHDR(&message)) {
      OpenFile& opened = files[header.file];
      std::memcpy(&opened.fd, CMSG_DATA(first), sizeof(int));
      opened.has_lines = header.has_lines != 0;
    }
    // For a file opened in an earlier writer process that was killed: fd is -1.
    OpenFile& file = files[header.file];
    Answer answer{header.file, header.size, 0, header.closes, 0};
    write_to(file, std::string_view(bytes.data(), header.size), answer);
    if (header.closes != 0) {
      // Some file servers report failed writes only on close().
      if (::close(file.fd) != 0) {
        answer.error = errno;
      }
      files.erase(header.file);
    }
    if (::send(socket.get(), &answer, sizeof(answer), MSG_NOSIGNAL) < 0) {
      ::_exit(0);
    }
  }
}

}  // namespace

LogWriter::LogWriter(EventLoop& loop, DroppedOutput& losses)
    : loop_(loop), losses_(losses) {}

LogWriter::~LogWriter() {
  loop_.unwatch(watch_);
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    if (is_drained()) {
      // Otherwise the wait could block: I/O may defer SIGKILL.
      reap_helper(pid_);
    }
  }
}

void LogWriter::start() {
  std::array<int, 2> ends{};
  check(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()),
        "socketpair");
  Fd ours(ends[0]);
  const Fd writers(ends[1]);
  check(::fcntl(ours.get(), F_SETFL, O_NONBLOCK), "fcntl");
  pid_ = fork_helper(writers.get());
  if (pid_ == 0) {
    serve(writers);
  }
  socket_ = std::move(ours);
  watch(/*for_room=*/false);
}

void LogWriter::watch(bool for_room) {
  awaits_room_ = for_room;
  loop_.unwatch(watch_);
  watch_ = loop_.watch(
      socket_.get(), for_room ? EPOLLIN | EPOLLOUT : EPOLLIN, [this] {
        read_answer();
        if (awaits_room_ && socket_) {
          send_more();
        }
      });
}

LogWriter::File LogWriter::open(Fd file, std::string path, Content content) {
  if (pid_ == 0) {
    start();
  }
  const File number = ++last_file_;
  paths_.emplace(number, std::move(path));
  push({.file = number, .opened = std::move(file), .content = content});
  return number;
}

void LogWriter::write(File file, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kMostOfRequest);
    push({.file = file, .bytes = std::string(piece)});
    bytes.remove_prefix(piece.size());
  }
}

void LogWriter::close(File file) {
  push({.file = file, .closes = true});
}

void LogWriter::push(Request request) {
  if (!socket_) {  // the writer process was killed
    losses_.add(paths_[request.file], request.bytes.size(), EPIPE);
    return;
  }
  ++answers_awaited_;
  waiting_bytes_ += request.bytes.size();
  requests_.push_back(std::move(request));
  if (!awaits_room_) {
    send_more();
  }
}

void LogWriter::send_more() {
  while (!requests_.empty()) {
    Request& request = requests_.front();
    Header header{request.file,
                  static_cast<uint32_t>(request.bytes.size()),
                  request.closes ? 1U : 0U,
                  request.content == Content::lines ? 1U : 0U};
    std::array<iovec, 2> parts{{{&header, sizeof(header)},
                                {request.bytes.data(), request.bytes.size()}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    Control control{};
    if (request.opened) {
      message.msg_control = &control;
      message.msg_controllen = sizeof(control);
      cmsghdr* first = CMSG_FIRSTHDR(&message);
      first->cmsg_level = SOL_SOCKET;
      first->cmsg_type = SCM_RIGHTS;
      first->cmsg_len = CMSG_LEN(sizeof(int));
      const int file = request.opened.get();
      std::memcpy(CMSG_DATA(first), &file, sizeof(file));
    }
    const ssize_t sent = retry_interrupted(
        [&] { return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL); });
    if (sent < 0) {
      if (errno == EAGAIN && !awaits_room_) {
        watch(/*for_room=*/true);
      }
      return;  // the watch reports the end of the process
    }
    requests_.pop_front();
  }
  if (awaits_room_) {
    watch(/*for_room=*/false);
  }
}

void LogWriter::read_answer() {
  Answer answer{};
  const ssize_t size = retry_interrupted(
      [&] { return ::recv(socket_.get(), &answer, sizeof(answer), 0); });
  if (size != sizeof(answer)) {
    if (size >= 0 || errno != EAGAIN) {
      give_up();
    }
    return;
  }
  --answers_awaited_;
  waiting_bytes_ -= answer.size;
  if (answer.error != 0) {
    losses_.add(
        paths_[answer.file], answer.size - answer.written, answer.error);
  }
  if (answer.closes != 0) {
    paths_.erase(answer.file);
  }
}

/// Handles the death of the writer process.
void LogWriter::give_up() {
  loop_.unwatch(std::exchange(watch_, 0));
  awaits_room_ = false;
  socket_.reset();
  reap_helper(std::exchange(pid_, 0));
  requests_.clear();
  oldest_file_ = last_file_ + 1;
  answers_awaited_ = 0;
  waiting_bytes_ = 0;
  for (const auto& [file, path] : paths_) {
    losses_.add(path, 0, EPIPE);
  }
}

bool LogWriter::is_congested() const {
  return waiting_bytes_ >= kCongestedQueueBytes;
}

}  // namespace launcher
