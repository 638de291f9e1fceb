#include "launcher/hosts/protocol/backoff.h"

#include <algorithm>
#include <utility>

namespace launcher {

Backoff::Backoff(Duration first, Duration most)
    : first_(first), most_(most), next_(first) {}

Backoff::Duration Backoff::next() {
  return std::exchange(next_, std::min(2 * next_, most_));
}

}  // namespace launcher
