#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

#include "launcher/base/event_loop.h"
#include "test/launcher/meeting/place.h"

namespace launcher::test {

/// From now on the loop waits for 20 s at most: then run_once() throws an error
/// that names the place of this call.
inline void bound(EventLoop& loop, Place place = Place::current()) {
  loop.arm_timer("bound of the test", std::chrono::seconds(20), [place] {
    throw std::runtime_error(std::string(place.file) + ":" +
                             std::to_string(place.line) +
                             ": the event loop still waits after 20 s");
  });
}

}  // namespace launcher::test
