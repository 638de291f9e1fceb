#pragma once

#include <cstdint>

#include "test/fake_gpu/engine/captures.h"
#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

/// Returns true if this wait of `waiter` for an event is the one to lose, by
/// its number among the waits of its device. Call for every wait. The event is
/// at `point` or, if it was captured, at `mark`.
bool loses(Stream* waiter, const Point& point, const CaptureMark& mark);

}  // namespace fake_gpu

// Functions that control.h finds by name.
extern "C" {
void fake_gpu_lose_wait(uint64_t n);
int fake_gpu_lost_wait(int device);
}
