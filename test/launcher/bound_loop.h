#pragma once

#include <chrono>
#include <source_location>
#include <stdexcept>
#include <string>

#include "launcher/event_loop.h"

namespace launcher::test {

/// From now on the loop waits for 20 s at most: then run_once() throws an error
/// that names the place of this call.
inline void bound(
    EventLoop& loop,
    std::source_location place = std::source_location::current()) {
  loop.arm_timer("bound of the test", std::chrono::seconds(20), [place] {
    throw std::runtime_error(std::string(place.file_name()) + ":" +
                             std::to_string(place.line()) +
                             ": the event loop still waits after 20 s");
  });
}

}  // namespace launcher::test
