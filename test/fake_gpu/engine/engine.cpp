#include "test/fake_gpu/engine/engine.h"

#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/memory.h"
#include "test/fake_gpu/engine/stream_set.h"
#include "test/fake_gpu/log.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

// Interval between two attempts of an operation that could not proceed.
constexpr auto kRest = std::chrono::microseconds(200);
// If no operation was queued or waited for during this time, all queued
// operations run: a program may wait for a GPU in a way that the engine does
// not see.
constexpr auto kQuiet = std::chrono::milliseconds(1000);
// Number of fruitless queries of a stream that count as a wait.
constexpr int kQueriesThatWait = 4;

class Engine {
 public:
  Stream* default_stream(int device);
  Stream* create_stream(int device, Stream::Kind kind);
  Point enqueue(Stream* stream, Operation operation);
  void enqueue_wait(Stream* stream, const Point& point);
  Point last_of(Stream* stream);
  bool is_reached(const Point& point);
  bool query(const Point& point);
  void wait_for(const Point& point);
  std::vector<Point> ends_of(int device);
  void reschedule(Mode mode, uint64_t seed);
  void stop();

 private:
  void start();
  void was_called();
  void run();
  void run_first_of(Stream* stream, std::unique_lock<std::mutex>& lock);
  void remove_first_of(Stream* stream, std::unique_lock<std::mutex>& lock);

  /// A thread that blocks in wait_for().
  struct Waiter {
    explicit Waiter(const Point& awaited) : point(awaited) {}
    const Point& point;
    std::condition_variable wake;
  };

  std::mutex mutex_;
  std::condition_variable work_;  // wakes the thread: there may be work
  std::condition_variable idle_;  // wakes stop(): no step is running
  std::list<Waiter> waiters_;
  StreamSet streams_{settings().seed};
  Mode mode_ = settings().mode;
  Clock::time_point last_call_ = Clock::now();
  bool started_ = false;
  bool stopped_ = false;
  bool running_ = false;  // a step is running, without the lock
};

/// Returns the engine, which is never destroyed, because its thread may outlive
/// main().
Engine& engine() {
  static auto* const instance = new Engine;
  return *instance;
}

Stream* Engine::default_stream(int device) {
  const std::lock_guard lock(mutex_);
  return streams_.default_stream(device);
}

Stream* Engine::create_stream(int device, Stream::Kind kind) {
  const std::lock_guard lock(mutex_);
  return streams_.create(device, kind);
}

Point Engine::enqueue(Stream* stream, Operation operation) {
  const std::lock_guard lock(mutex_);
  start();
  const Point point = streams_.add(stream, std::move(operation));
  was_called();
  return point;
}

void Engine::enqueue_wait(Stream* stream, const Point& point) {
  const std::lock_guard lock(mutex_);
  streams_.add_wait(stream, point);
  was_called();
}

Point Engine::last_of(Stream* stream) {
  const std::lock_guard lock(mutex_);
  return stream->last();
}

bool Engine::is_reached(const Point& point) {
  const std::lock_guard lock(mutex_);
  return reached(point);
}

bool Engine::query(const Point& point) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || reached(point)) {  // as in wait_for()
    return true;
  }
  if (++point.stream->fruitless_queries >= kQueriesThatWait) {
    streams_.demand(point);
    was_called();
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
  streams_.demand(point);
  was_called();
  // A condition variable of its own, because waking all waiters after each step
  // takes longer than the step.
  const auto waiter = waiters_.emplace(waiters_.end(), point);
  waiter->wake.wait(lock, [&] { return stopped_ || reached(point); });
  waiters_.erase(waiter);
}

std::vector<Point> Engine::ends_of(int device) {
  const std::lock_guard lock(mutex_);
  return streams_.ends_of(device);
}

void Engine::reschedule(Mode mode, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  mode_ = mode;
  streams_.reseed(seed);
  was_called();
}

void Engine::stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  work_.notify_all();
  for (Waiter& waiter : waiters_) {
    waiter.wake.notify_one();
  }
  idle_.wait(lock, [this] { return !running_; });
}

void Engine::start() {
  if (!started_) {
    started_ = true;
    std::thread([this] { run(); }).detach();
    std::atexit(stop_engine);
  }
}

void Engine::was_called() {
  last_call_ = Clock::now();
  work_.notify_one();
}

void Engine::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    streams_.demand_what_peers_want();
    const auto now = Clock::now();
    const bool overdue = now - last_call_ >= kQuiet;
    Stream* stream = streams_.choose_next({mode_, now, overdue});
    const auto next_look = streams_.next_look(now);
    if (stream != nullptr) {
      run_first_of(stream, lock);
    } else if (next_look == Clock::time_point::max()) {
      work_.wait(lock);
    } else {
      work_.wait_until(lock, next_look);
    }
  }
}

void Engine::run_first_of(Stream* stream, std::unique_lock<std::mutex>& lock) {
  // The queue is a deque: references stay valid while operations are added.
  const Operation& operation = stream->queue.front();
  running_ = true;
  lock.unlock();
  bool done = true;
  try {
    const DeviceAccess access(stream->device, operation.label);
    done = !operation.step || operation.step();
  } catch (const std::exception& error) {
    fail(operation.label + ": " + error.what());
  }
  lock.lock();
  if (done) {
    remove_first_of(stream, lock);
  } else {
    ++stream->refusals;
    stream->resting = Clock::now() + kRest;
  }
  running_ = false;
  idle_.notify_all();
}

void Engine::remove_first_of(Stream* stream,
                             std::unique_lock<std::mutex>& lock) {
  Operation finished = std::move(stream->queue.front());
  stream->queue.pop_front();
  ++stream->done;
  stream->refusals = 0;
  stream->fruitless_queries = 0;
  stream->resting = {};
  if (tracing()) {
    say("run " + name_of({stream, stream->done}) + ": " + finished.label);
  }
  for (Waiter& waiter : waiters_) {
    if (reached(waiter.point)) {
      waiter.wake.notify_one();
    }
  }
  // The operation may hold the last reference to a tensor, and its block is
  // returned to an allocator with a lock of its own.
  lock.unlock();
  finished = {};
  lock.lock();
}

}  // namespace

Stream* default_stream(int device) {
  return engine().default_stream(device);
}

Stream* create_stream(int device, Stream::Kind kind) {
  return engine().create_stream(device, kind);
}

Point enqueue(Stream* stream,
              std::string label,
              Step step,
              std::function<bool()> wanted) {
  Operation operation{std::move(label), std::move(step), {}, std::move(wanted)};
  if (!is_capturing(stream)) {
    return engine().enqueue(stream, std::move(operation));
  }
  // Shared, because a launch need not copy the step.
  const auto shared = std::make_shared<const Operation>(std::move(operation));
  record(stream, [shared](Stream* hidden) {
    return engine().enqueue(
        hidden,
        Operation{shared->label, [shared] { return shared->step(); }, {}, {}});
  });
  return {};
}

void enqueue_wait(Stream* stream, const Point& point) {
  engine().enqueue_wait(stream, point);
}

Point last_of(Stream* stream) {
  return engine().last_of(stream);
}
bool is_reached(const Point& point) {
  return engine().is_reached(point);
}

bool query(const Point& point) {
  return engine().query(point);
}
void wait_for(const Point& point) {
  engine().wait_for(point);
}

void wait_for_device(int device) {
  for (const Point& end : engine().ends_of(device)) {
    engine().wait_for(end);
  }
}

void reschedule(Mode mode, uint64_t seed) {
  engine().reschedule(mode, seed);
}
void stop_engine() {
  engine().stop();
}

}  // namespace fake_gpu

void fake_gpu_schedule(int mode, uint64_t seed) {
  fake_gpu::reschedule(static_cast<fake_gpu::Mode>(mode), seed);
}
