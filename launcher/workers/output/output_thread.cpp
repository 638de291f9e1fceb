#include "launcher/workers/output/output_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "ddp/base/block_signals.h"
#include "ddp/base/job_files/error_file.h"

namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCongestedBytes = 1024 * 1024;

}  // namespace

struct OutputThread::File {
  std::string name;  // for messages
  Fd fd{};
  bool is_terminal = false;
  std::string replaced_path{};   // empty: `fd` is written
  std::function<void()> task{};  // of run(): there is nothing to write
  std::function<void()> done{};

  // Guarded by the mutex of the State.
  std::string text{};  // to be written
  bool closes = false;
  bool is_queued = false;
  size_t unwritten = 0;  // bytes of `text` and of the text in the thread

  // Used by the thread only.
  char last_written = '\n';
  bool line_is_torn = false;  // the rest of a line was lost
  bool has_reader = true;
  bool has_failed = false;
};

struct OutputThread::State {
  /// A failed write or close, a replacement after a failed one, or the end of a
  /// task.
  struct Result {
    std::string name;
    size_t lost;
    int error;  // errno; 0: the file has been replaced
    std::function<void()> done{};
  };

  // Readable if the event loop has something to do.
  Fd event{check(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")};
  std::mutex mutex{};
  std::condition_variable changed{};
  // Files with text, or to be closed. The thread works at the first one.
  std::deque<std::shared_ptr<File>> queue{};
  size_t unwritten = 0;
  Clock::time_point last_progress{};
  std::vector<Result> results{};
  bool drain_is_awaited = false;
  bool ends = false;

  /// Runs the thread.
  void run();

 private:
  void handle(File& file, std::unique_lock<std::mutex>& lock);
  int write(File& file, std::string_view text);
  void note_done(File& file, size_t size);
  void wake_loop() const { ::eventfd_write(event.get(), 1); }
};

namespace {

/// Writes the beginning of a text. Waits for the reader also if another process
/// has made the descriptor non-blocking.
ssize_t write_some(int fd, std::string_view text) {
  // A pipe takes a piece of this size entirely or not at all.
  const std::string_view piece = text.substr(0, PIPE_BUF);
  for (;;) {
    const ssize_t size = retry_interrupted(
        [&] { return ::write(fd, piece.data(), piece.size()); });
    if (size >= 0 || errno != EAGAIN) {
      return size;
    }
    pollfd room{fd, POLLOUT, 0};
    ::poll(&room, 1, -1);
  }
}

bool means_no_reader(int error, bool is_terminal) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN ||
         (error == EIO && is_terminal);
}

}  // namespace

void OutputThread::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return ends || !queue.empty(); });
    if (ends) {
      return;
    }
    const std::shared_ptr<File> file = queue.front();
    handle(*file, lock);
    queue.pop_front();
    file->is_queued = file->closes || !file->text.empty();
    if (file->is_queued) {
      queue.push_back(file);
    }
    if (queue.empty()) {
      changed.notify_all();
    }
    if (!results.empty() || (queue.empty() && drain_is_awaited)) {
      drain_is_awaited = false;
      wake_loop();
    }
  }
}

void OutputThread::State::handle(File& file,
                                 std::unique_lock<std::mutex>& lock) {
  const std::string text = std::exchange(file.text, {});
  const bool closes = std::exchange(file.closes, false);
  lock.unlock();
  if (file.task) {
    file.task();
    lock.lock();
    note_done(file, 0);
    results.push_back({file.name, 0, 0, std::move(file.done)});
    return;
  }
  const bool is_replaced = !file.replaced_path.empty();
  const int error =
      is_replaced ? ddp::detail::write_error_file(file.replaced_path, text)
                  : write(file, text);
  // Some file servers report failed writes only on close().
  const int close_error = closes && ::close(file.fd.release()) != 0 ? errno : 0;
  lock.lock();
  const size_t rest = file.unwritten - file.text.size();
  note_done(file, rest);
  const bool was_failed = std::exchange(file.has_failed, error != 0);
  if (error != 0 || (is_replaced && was_failed)) {
    results.push_back({file.name, error != 0 ? rest : 0, error});
  }
  if (close_error != 0) {
    results.push_back({file.name, 0, close_error});
  }
}

/// Returns 0 or errno.
int OutputThread::State::write(File& file, std::string_view text) {
  if (file.line_is_torn && !text.empty()) {
    file.line_is_torn = write_some(file.fd.get(), "\n") < 0;
  }
  while (!text.empty() && file.has_reader) {
    const ssize_t size = write_some(file.fd.get(), text);
    if (size < 0) {
      const int error = errno;
      file.line_is_torn = file.last_written != '\n';
      file.has_reader = !means_no_reader(error, file.is_terminal);
      return file.has_reader ? error : 0;
    }
    file.last_written = text[static_cast<size_t>(size) - 1];
    text.remove_prefix(static_cast<size_t>(size));
    const std::lock_guard lock(mutex);
    note_done(file, static_cast<size_t>(size));
    if (ends) {
      return 0;
    }
  }
  return 0;
}

void OutputThread::State::note_done(File& file, size_t size) {
  const bool was_congested = unwritten >= kCongestedBytes;
  file.unwritten -= size;
  unwritten -= size;
  last_progress = Clock::now();
  if (was_congested && unwritten < kCongestedBytes) {
    wake_loop();
  }
}

OutputThread::OutputThread(EventLoop& loop, DroppedOutput& losses)
    : loop_(loop), losses_(losses), state_(std::make_shared<State>()) {
  const ddp::detail::BlockedSignals blocked;
  thread_ = std::thread([state = state_] { state->run(); });
  watch_ =
      loop_.watch(state_->event.get(), EPOLLIN, [this] { record_results(); });
}

OutputThread::~OutputThread() {
  loop_.unwatch(watch_);
  await_end_of_work();
  std::unique_lock lock(state_->mutex);
  state_->ends = true;
  const bool is_idle = state_->queue.empty();
  lock.unlock();
  state_->changed.notify_all();
  is_idle ? thread_.join() : thread_.detach();
}

std::shared_ptr<OutputThread::File> OutputThread::open(Fd fd,
                                                       std::string name) {
  const bool is_terminal = ::isatty(fd.get()) == 1;
  return std::make_shared<File>(File{.name = std::move(name),
                                     .fd = std::move(fd),
                                     .is_terminal = is_terminal});
}

void OutputThread::write(const std::shared_ptr<File>& file,
                         std::string_view bytes) {
  if (bytes.empty()) {
    return;
  }
  const std::lock_guard lock(state_->mutex);
  file->text.append(bytes);
  file->unwritten += bytes.size();
  state_->unwritten += bytes.size();
  push(file);
}

void OutputThread::close(const std::shared_ptr<File>& file) {
  const std::lock_guard lock(state_->mutex);
  file->closes = true;
  push(file);
}

void OutputThread::replace(const std::string& path,
                           const std::string& name,
                           std::string text) {
  std::shared_ptr<File>& file = replaced_[path];
  if (!file) {
    file = std::make_shared<File>(File{.name = name, .replaced_path = path});
  }
  const std::lock_guard lock(state_->mutex);
  const size_t added = text.size() - file->text.size();  // modulo 2^64
  file->text = std::move(text);
  file->unwritten += added;
  state_->unwritten += added;
  push(file);
}

void OutputThread::run(std::function<void()> task, std::function<void()> done) {
  const auto file = std::make_shared<File>(
      File{.name = {}, .task = std::move(task), .done = std::move(done)});
  const std::lock_guard lock(state_->mutex);
  push(file);
}

/// Requires the lock.
void OutputThread::push(const std::shared_ptr<File>& file) {
  if (file->is_queued) {
    return;
  }
  if (state_->queue.empty()) {
    state_->last_progress = Clock::now();
  }
  file->is_queued = true;
  state_->queue.push_back(file);
  state_->changed.notify_all();
}

void OutputThread::record_results() {
  eventfd_t events = 0;
  ::eventfd_read(state_->event.get(), &events);
  std::unique_lock lock(state_->mutex);
  const std::vector<State::Result> results = std::exchange(state_->results, {});
  lock.unlock();  // a loss may write, and a handler may do anything
  for (const State::Result& result : results) {
    if (result.done) {
      result.done();
    } else if (result.error != 0) {
      losses_.add(result.name, result.lost, result.error);
    } else {
      losses_.forget(result.name);
    }
  }
}

bool OutputThread::is_congested() const {
  const std::lock_guard lock(state_->mutex);
  return state_->unwritten >= kCongestedBytes;
}

bool OutputThread::is_stalled() const {
  const std::lock_guard lock(state_->mutex);
  return state_->unwritten >= kCongestedBytes &&
         Clock::now() - state_->last_progress >= kStallTime;
}

bool OutputThread::is_drained() const {
  const std::lock_guard lock(state_->mutex);
  const bool is_drained = state_->queue.empty() && state_->results.empty();
  state_->drain_is_awaited = !is_drained;
  return is_drained;
}

void OutputThread::await_end_of_work() {
  std::unique_lock lock(state_->mutex);
  const auto end = state_->last_progress + kStallTime;
  state_->changed.wait_until(
      lock, end, [this] { return state_->ends || state_->queue.empty(); });
}

void OutputThread::drain() {
  await_end_of_work();
  record_results();
}

void OutputThread::abandon() {
  record_results();
  const std::lock_guard lock(state_->mutex);
  if (state_->ends) {
    return;
  }
  for (const auto& file : state_->queue) {
    const bool is_closing = !file->task && file == state_->queue.front();
    if (file->unwritten > 0 || is_closing) {
      losses_.add(file->name, file->unwritten, 0);
    }
  }
  state_->ends = !state_->queue.empty();
}

}  // namespace launcher
