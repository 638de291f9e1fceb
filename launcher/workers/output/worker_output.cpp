#include "launcher/workers/output/worker_output.h"

#include <algorithm>

namespace launcher {
namespace {

constexpr const char* kStallTimer = "stalled console";
constexpr const char* kLineTimer = "unfinished line";
// Programs write most lines in two or more pieces, one soon after the other.
constexpr std::chrono::milliseconds kTimeToEndLine{300};

}  // namespace

// Resume after each round: an OutputThread that has room causes one.
WorkerOutput::WorkerOutput(EventLoop& loop)
    : loop_(loop), rounds_(loop.watch_rounds([this] { resume(); })) {}

WorkerOutput::~WorkerOutput() {
  loop_.unwatch(rounds_);
  loop_.disarm_timer(kStallTimer);
  loop_.disarm_timer(kLineTimer);
  for (Source& source : sources_) {
    stop(source);
  }
}

const WorkerStream& WorkerOutput::add(Fd pipe, StreamTargets targets) {
  sources_.push_back({WorkerStream(std::move(pipe), std::move(targets))});
  start(sources_.back());
  return sources_.back().stream;
}

void WorkerOutput::start(Source& source) {
  source.token = loop_.watch(
      source.stream.fd(), EPOLLIN, [this, &source] { read(source); });
}

void WorkerOutput::stop(Source& source) {
  loop_.unwatch(source.token);
  source.token = 0;
}

void WorkerOutput::read(Source& source) {
  if (source.stream.read_some() == WorkerStream::State::ended) {
    stop(source);
    source.has_ended = true;
    source.stream.finish();
  } else if (source.stream.is_held_up()) {
    stop(source);
    // Force a round of the event loop when the console counts as stalled, even
    // if no other event arrives.
    loop_.arm_timer(kStallTimer, OutputThread::kStallTime, [] {});
  }
  if (source.stream.unshown_since() && !awaits_line_ends_) {
    await_line_ends();
  }
}

void WorkerOutput::await_line_ends() {
  awaits_line_ends_ = true;
  loop_.arm_timer(kLineTimer, kTimeToEndLine, [this] { show_unfinished(); });
}

void WorkerOutput::show_unfinished() {
  awaits_line_ends_ = false;
  const auto latest = std::chrono::steady_clock::now() - kTimeToEndLine;
  for (Source& source : sources_) {
    const auto since = source.stream.unshown_since();
    if (!since || source.has_ended) {
      continue;
    }
    if (*since <= latest && source.token != 0) {
      // The end of the line may be in the pipe: the stream was paused, or
      // ddprun stood still.
      read(source);
      if (source.token != 0 && source.stream.unshown_since() == since) {
        source.stream.show_unfinished();
      }
    }
    if (source.stream.unshown_since() && !awaits_line_ends_) {
      await_line_ends();
    }
  }
}

bool WorkerOutput::is_held_up() const {
  return std::any_of(
      sources_.begin(), sources_.end(), [](const Source& source) {
        return source.token == 0 && !source.has_ended;
      });
}

void WorkerOutput::resume() {
  for (Source& source : sources_) {
    if (source.token == 0 && !source.has_ended && !source.stream.is_held_up()) {
      start(source);
    }
  }
}

void WorkerOutput::finish() {
  for (Source& source : sources_) {
    stop(source);
    source.has_ended = true;
    source.stream.finish();
  }
}

}  // namespace launcher
