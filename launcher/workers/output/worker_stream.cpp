#include "launcher/workers/output/worker_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "launcher/base/text.h"

namespace launcher {
namespace {

// More than a pipe holds by default, in pieces of 64 KiB.
constexpr int kMaxFinalPieces = 32;

}  // namespace

WorkerStream::WorkerStream(Fd pipe, StreamTargets targets)
    : pipe_(std::move(pipe)), targets_(std::move(targets)) {
  check(::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK), "fcntl");
}

bool WorkerStream::is_held_up() const {
  const Console* console = targets_.console;
  const bool is_console_full =
      console != nullptr && console->thread().is_congested();
  if (targets_.filtered != nullptr && targets_.filtered->is_congested()) {
    return true;
  }
  return targets_.file
             ? targets_.file->is_congested() ||
                   (is_console_full && !console->thread().is_stalled())
             : is_console_full;
}

WorkerStream::State WorkerStream::read_some() {
  return pipe_ && !read_piece() && errno != EAGAIN ? State::ended : State::open;
}

/// Returns false and sets errno if no data was read; errno is 0 at end of file.
bool WorkerStream::read_piece() {
  static thread_local std::array<char, 64 * 1024> buffer;
  errno = 0;
  const ssize_t size = retry_interrupted(
      [&] { return ::read(pipe_.get(), buffer.data(), buffer.size()); });
  if (size <= 0) {
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(size));
  if (targets_.file) {
    targets_.file->write(bytes);
  }
  splitter_.feed(bytes, [this](std::string_view line, LineEnd end) {
    take_line(line, end);
  });
  if (targets_.console != nullptr) {
    targets_.console->flush();
    if (!unshown_since_ && splitter_.unfinished().size() > shown_bytes_) {
      unshown_since_ = std::chrono::steady_clock::now();
    }
  }
  return true;
}

void WorkerStream::take_line(std::string_view line, LineEnd end) {
  if (targets_.console != nullptr) {
    show(line, end);
  }
  if (targets_.filtered != nullptr) {
    targets_.filtered->write_if_matching(targets_.prefix, line);
  }
  if (targets_.keeps_last_lines && end != LineEnd::carriage_return) {
    last_lines_.add(line);
  }
}

bool WorkerStream::is_console_stalled() const {
  return targets_.file && targets_.console->thread().is_stalled();
}

void WorkerStream::show(std::string_view line, LineEnd end) {
  const size_t shown = std::exchange(shown_bytes_, 0);
  unshown_since_.reset();
  if (is_console_stalled()) {
    ++lines_not_shown_;
    return;
  }
  show_what_is_missing();
  targets_.console->write_line({.prefix = targets_.prefix,
                                .text = line.substr(shown),
                                .end = end,
                                .stream = this,
                                .is_rest = shown > 0});
}

void WorkerStream::show_unfinished() {
  unshown_since_.reset();
  if (is_console_stalled()) {
    return;
  }
  const std::string_view line = splitter_.unfinished();
  // On a terminal, a step is replaced by the next line, so it is shown whole.
  const bool is_step =
      targets_.console->is_terminal() && splitter_.is_in_progress_bar();
  if (is_step) {
    show(line, LineEnd::carriage_return);
  } else {
    const size_t shown = shown_bytes_;
    show_what_is_missing();
    targets_.console->write_line({.prefix = targets_.prefix,
                                  .text = line.substr(shown),
                                  .end = LineEnd::none,
                                  .stream = this,
                                  .is_rest = shown > 0});
    shown_bytes_ = line.size();
  }
  targets_.console->flush();
}

void WorkerStream::show_what_is_missing() {
  if (const int64_t lines = std::exchange(lines_not_shown_, 0)) {
    const std::string text =
        "ddprun: nobody read this for a time; " + count_text(lines, "line") +
        " that came then can be found in " + targets_.file_path;
    targets_.console->write_line(
        {.prefix = targets_.prefix, .text = text, .stream = this});
  }
}

void WorkerStream::finish() {
  for (int piece = 0; pipe_ && piece < kMaxFinalPieces && read_piece();
       ++piece) {
  }
  pipe_.reset();
  splitter_.finish(
      [this](std::string_view line, LineEnd end) { take_line(line, end); });
  show_what_is_missing();
  if (targets_.console != nullptr) {
    targets_.console->flush();
  }
  if (targets_.file) {
    targets_.file->finish();
    targets_.file.reset();
  }
}

}  // namespace launcher
