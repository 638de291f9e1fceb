#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

#include "launcher/base/event_loop.h"
#include "test/launcher/hosts/place.h"

namespace launcher::test {

/// Limits the loop's waiting to 20 s. After this time run_once() throws an
/// error with the source location of this call.
inline void bound(EventLoop& loop, Place place = Place::current()) {
  loop.arm_timer("bound of the test", std::chrono::seconds(20), [place] {
    throw std::runtime_error(std::string(place.file) + ":" +
                             std::to_string(place.line) +
                             ": the event loop still waits after 20 s");
  });
}

}  // namespace launcher::test
