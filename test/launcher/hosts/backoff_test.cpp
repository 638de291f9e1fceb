#include "ddp/base/backoff.h"

#include <vector>

#include "test/support/catch.h"

using ddp::detail::Backoff;
using namespace std::chrono_literals;

TEST_CASE("pauses between attempts double, up to a limit") {
  Backoff backoff(5ms, 250ms);
  const auto pauses = [&] {
    std::vector<std::chrono::milliseconds> all;
    for (int attempt = 0; attempt < 9; ++attempt) {
      all.push_back(backoff.next());
    }
    return all;
  };
  const std::vector<std::chrono::milliseconds> expected{
      5ms, 10ms, 20ms, 40ms, 80ms, 160ms, 250ms, 250ms, 250ms};
  CHECK(pauses() == expected);
  backoff.reset();
  CHECK(pauses() == expected);
}
