#include "test/fake_gpu/cudart/lost_wait.h"

#include <map>
#include <mutex>
#include <string>

#include "test/fake_gpu/control.h"
#include "test/fake_gpu/engine/engine.h"
#include "test/fake_gpu/log.h"
#include "test/fake_gpu/settings.h"

namespace fake_gpu {
namespace {

/// Returns the point before the event, because the event itself is the last
/// operation.
Point work_before(const Point& event) {
  return event.stream == nullptr ? event
                                 : Point{event.stream, event.number - 1};
}

/// Returns the number of operations queued and recorded on a stream.
uint64_t operations_of(Stream* stream) {
  const Past past = mark(stream).past;
  const auto recorded = past.find(stream);
  return last_of(stream).number +
         (recorded == past.end() ? 0 : recorded->second);
}

/// The waits of one device.
class Waits {
 public:
  bool loses(uint64_t number,
             Stream* waiter,
             const Point& point,
             const CaptureMark& mark) {
    if (++seen_ != number) {
      look_for_cover(waiter, point, mark);
      return false;
    }
    waiter_ = waiter;
    point_ = point;
    mark_ = mark;
    operations_ = operations_of(waiter);
    const bool reached = mark.capture == 0 ? is_reached(work_before(point))
                                           : has_waited(waiter, mark);
    fate_ = reached ? LostWait::reached : LostWait::missing;
    if (fate_ == LostWait::missing && (settings().lose_wait > 0 || tracing())) {
      say("lost: a wait of stream " + std::to_string(waiter->id) + " for " +
          (mark.capture == 0 ? name_of(point) : "a captured event"));
    }
    return true;
  }

  LostWait fate() const { return fate_; }

 private:
  void look_for_cover(Stream* waiter,
                      const Point& point,
                      const CaptureMark& mark) {
    if (fate_ == LostWait::missing && waiter == waiter_ &&
        point.stream == point_.stream && point.number >= point_.number &&
        mark.capture == mark_.capture && covers(mark.past, mark_.past) &&
        operations_of(waiter) == operations_) {
      fate_ = LostWait::covered;
    }
  }

  uint64_t seen_ = 0;
  Stream* waiter_ = nullptr;
  Point point_;
  CaptureMark mark_;
  uint64_t operations_ = 0;  // of the waiter when the wait was lost
  LostWait fate_ = LostWait::none;
};

struct LostWaits {
  std::mutex mutex;
  uint64_t number = settings().lose_wait;
  std::map<int, Waits> devices;
};

LostWaits& lost_waits() {
  static auto* const instance = new LostWaits;
  return *instance;
}

}  // namespace

bool loses(Stream* waiter, const Point& point, const CaptureMark& mark) {
  LostWaits& s = lost_waits();
  const std::lock_guard lock(s.mutex);
  return s.devices[waiter->device].loses(s.number, waiter, point, mark);
}

}  // namespace fake_gpu

void fake_gpu_lose_wait(uint64_t n) {
  auto& s = fake_gpu::lost_waits();
  const std::lock_guard lock(s.mutex);
  s.number = n;
  s.devices.clear();
}

int fake_gpu_lost_wait(int device) {
  auto& s = fake_gpu::lost_waits();
  const std::lock_guard lock(s.mutex);
  return static_cast<int>(s.devices[device].fate());
}
