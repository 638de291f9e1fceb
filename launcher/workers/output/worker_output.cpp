#include "launcher/workers/output/worker_output.h"

#include <algorithm>

namespace launcher {
namespace {

constexpr const char* kStallTimer = "stalled console";

}  // namespace

// Resume after each round: an OutputThread that has room causes one.
WorkerOutput::WorkerOutput(EventLoop& loop)
    : loop_(loop), rounds_(loop.watch_rounds([this] { resume(); })) {}

WorkerOutput::~WorkerOutput() {
  loop_.unwatch(rounds_);
  loop_.disarm_timer(kStallTimer);
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
