#include "test/fake_gpu/engine/engine.h"

#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "test/fake_gpu/engine/scheduler.h"
#include "test/fake_gpu/log.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

using std::chrono::milliseconds;

// An operation that could not go on is asked again after this time.
constexpr auto kRest = std::chrono::microseconds(200);
// How often other processes are asked whether they wait for us.
constexpr auto kLook = milliseconds(1);
// When nothing was queued or waited for in this time, all that is queued runs:
// a program may wait for a GPU by means that the engine does not see.
constexpr auto kQuiet = milliseconds(1000);
// So many fruitless queries of a stream are a wait.
constexpr int kQueriesThatWait = 4;

std::string name_of(const Point& point) {
  return "stream " + std::to_string(point.stream->id) + " #" +
         std::to_string(point.number);
}

class Engine {
 public:
  Stream* default_stream(int device);
  Stream* create_stream(int device, Stream::Kind kind);
  Point enqueue(Stream* stream, Operation operation);
  void enqueue_wait(Stream* stream, const Point& point);
  Point last_of(Stream* stream);
  bool query(const Point& point);
  void wait_for(const Point& point);
  std::vector<Point> ends_of(int device);
  void reschedule(Mode mode, uint64_t seed);
  void stop();

 private:
  Stream* add_stream(int device, Stream::Kind kind);
  Point add(Stream* stream, Operation operation);
  void add_implicit_waits(Stream* stream);
  void demand(const Point& point);
  void demand_what_peers_want();
  void run();
  void run_first_of(Stream* stream, std::unique_lock<std::mutex>& lock);
  Clock::time_point next_look() const;

  std::mutex mutex_;
  std::condition_variable work_;      // for the thread: something to look at
  std::condition_variable progress_;  // for those who wait: something has run
  std::vector<Stream*> streams_;      // never freed: points name them
  std::map<int, Stream*> default_streams_;
  Mode mode_ = settings().mode;
  Random random_{settings().seed};
  Clock::time_point last_call_ = Clock::now();
  bool started_ = false;
  bool stopped_ = false;
  bool running_ = false;  // a step, without the lock
};

/// Never destroyed: its thread may outlive main().
Engine& engine() {
  static auto* const instance = new Engine;
  return *instance;
}

Stream* Engine::default_stream(int device) {
  const std::lock_guard lock(mutex_);
  Stream*& stream = default_streams_[device];
  if (stream == nullptr) {
    stream = add_stream(device, Stream::Kind::legacy);
  }
  return stream;
}

Stream* Engine::create_stream(int device, Stream::Kind kind) {
  const std::lock_guard lock(mutex_);
  return add_stream(device, kind);
}

Stream* Engine::add_stream(int device, Stream::Kind kind) {
  auto* stream = new Stream;
  stream->id = static_cast<int>(streams_.size());
  stream->device = device;
  stream->kind = kind;
  stream->priority = random_();
  streams_.push_back(stream);
  return stream;
}

Point Engine::enqueue(Stream* stream, Operation operation) {
  const std::lock_guard lock(mutex_);
  add_implicit_waits(stream);
  return add(stream, std::move(operation));
}

void Engine::enqueue_wait(Stream* stream, const Point& point) {
  const std::lock_guard lock(mutex_);
  if (!reached(point)) {
    add(stream, Operation{"wait for " + name_of(point), nullptr, point, {}});
  }
}

Point Engine::add(Stream* stream, Operation operation) {
  if (!started_) {
    started_ = true;
    std::thread([this] { run(); }).detach();
    std::atexit(stop_engine);
  }
  stream->queue.push_back(std::move(operation));
  const Point point{stream, ++stream->queued};
  if (tracing()) {
    say("queue " + name_of(point) + ": " + stream->queue.back().label);
  }
  last_call_ = Clock::now();
  work_.notify_one();
  return point;
}

void Engine::add_implicit_waits(Stream* stream) {
  if (stream->kind == Stream::Kind::non_blocking) {
    return;
  }
  for (Stream* other : streams_) {
    const bool related = other->device == stream->device &&
                         other->kind != Stream::Kind::non_blocking &&
                         (other->kind == Stream::Kind::legacy) !=
                             (stream->kind == Stream::Kind::legacy);
    if (related && !reached(other->last())) {
      add(stream, Operation{"implicit wait", nullptr, other->last(), {}});
    }
  }
}

Point Engine::last_of(Stream* stream) {
  const std::lock_guard lock(mutex_);
  return stream->last();
}

bool Engine::query(const Point& point) {
  const std::lock_guard lock(mutex_);
  if (reached(point)) {
    return true;
  }
  if (++point.stream->fruitless_queries >= kQueriesThatWait) {
    demand(point);
  }
  return false;
}

void Engine::wait_for(const Point& point) {
  std::unique_lock lock(mutex_);
  if (reached(point)) {
    return;
  }
  if (tracing()) {
    say("wait for " + name_of(point));
  }
  demand(point);
  progress_.wait(lock, [&] { return stopped_ || reached(point); });
}

std::vector<Point> Engine::ends_of(int device) {
  const std::lock_guard lock(mutex_);
  std::vector<Point> ends;
  for (Stream* stream : streams_) {
    if (device < 0 || stream->device == device) {
      ends.push_back(stream->last());
    }
  }
  return ends;
}

void Engine::reschedule(Mode mode, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  mode_ = mode;
  random_.seed(seed);
  for (Stream* stream : streams_) {
    stream->priority = random_();
  }
  work_.notify_one();
}

void Engine::stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  work_.notify_all();
  progress_.notify_all();
  progress_.wait(lock, [this] { return !running_; });
}

void Engine::demand(const Point& point) {
  auto& demanded = point.stream->demanded;
  demanded = std::max(demanded, point.number);
  last_call_ = Clock::now();
  work_.notify_one();
}

void Engine::demand_what_peers_want() {
  for (Stream* stream : streams_) {
    uint64_t number = stream->done;
    for (const Operation& operation : stream->queue) {
      ++number;
      if (operation.wanted && number > stream->demanded && operation.wanted()) {
        stream->demanded = number;
        break;
      }
    }
  }
}

Clock::time_point Engine::next_look() const {
  auto time = Clock::time_point::max();
  const auto now = Clock::now();
  for (const Stream* stream : streams_) {
    if (stream->queue.empty()) {
      continue;
    }
    time = std::min(time, std::max(last_call_ + kQuiet, now + kLook));
    if (stream->resting > now) {
      time = std::min(time, stream->resting);
    }
    for (const Operation& operation : stream->queue) {
      if (operation.wanted) {
        time = std::min(time, now + kLook);
      }
    }
  }
  return time;
}

void Engine::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    demand_what_peers_want();
    const auto now = Clock::now();
    Stream* stream = choose(
        streams_, {mode_, now, now - last_call_ >= kQuiet}, random_);
    if (stream != nullptr) {
      run_first_of(stream, lock);
      continue;
    }
    const auto until = next_look();
    if (until == Clock::time_point::max()) {
      work_.wait(lock);
    } else {
      work_.wait_until(lock, until);
    }
  }
}

void Engine::run_first_of(Stream* stream, std::unique_lock<std::mutex>& lock) {
  // A deque: the element stays where it is while others are added.
  Operation& operation = stream->queue.front();
  running_ = true;
  lock.unlock();
  bool done = true;
  try {
    done = !operation.step || operation.step();
  } catch (const std::exception& error) {
    fail(operation.label + ": " + error.what());
  }
  lock.lock();
  running_ = false;
  if (done) {
    if (tracing()) {
      say("run " + name_of({stream, stream->done + 1}) + ": " +
          operation.label);
    }
    ++stream->done;
    stream->refusals = 0;
    stream->fruitless_queries = 0;
    stream->resting = {};
    // What it holds, tensors and their blocks, is freed without the lock.
    Operation finished = std::move(operation);
    stream->queue.pop_front();
    progress_.notify_all();
    lock.unlock();
    finished = {};
    lock.lock();
  } else {
    ++stream->refusals;
    stream->resting = Clock::now() + kRest;
    progress_.notify_all();
  }
}

}  // namespace

Stream* default_stream(int device) { return engine().default_stream(device); }

Stream* create_stream(int device, Stream::Kind kind) {
  return engine().create_stream(device, kind);
}

Point enqueue(Stream* stream,
              std::string label,
              Step step,
              std::function<bool()> wanted) {
  return engine().enqueue(
      stream,
      Operation{std::move(label), std::move(step), {}, std::move(wanted)});
}

void enqueue_wait(Stream* stream, const Point& point) {
  engine().enqueue_wait(stream, point);
}

Point last_of(Stream* stream) { return engine().last_of(stream); }
bool query(const Point& point) { return engine().query(point); }
void wait_for(const Point& point) { engine().wait_for(point); }

void wait_for_device(int device) {
  for (const Point& end : engine().ends_of(device)) {
    engine().wait_for(end);
  }
}

void reschedule(Mode mode, uint64_t seed) { engine().reschedule(mode, seed); }
void stop_engine() { engine().stop(); }

}  // namespace fake_gpu

void fake_gpu_schedule(int mode, uint64_t seed) {
  fake_gpu::reschedule(static_cast<fake_gpu::Mode>(mode), seed);
}
