#include "samples/experiments/servers/update_log.h"

#include <algorithm>

#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace samples {
namespace update_log_test {

std::string bar(int length) {
  return std::string(static_cast<size_t>(length), '#');
}

TEST_CASE("losses as bars", "[update_log]") {
  UpdateLog log;
  CHECK(log.loss_bars(3).empty());
  for (int64_t i = 0; i < 5; ++i) {
    log.add({i, 0, 0, static_cast<double>(8 - i)});
  }
  CHECK(log.loss_bars(2) == "updates     1 to     2: loss 7.5000 " + bar(50) +
                                "\n"
                                "updates     3 to     5: loss 5.0000 " +
                                bar(33) + "\n");
  const auto rows = log.loss_bars(100);  // at most one row per update
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 5);
}

TEST_CASE("stalenesses as bars", "[update_log]") {
  CHECK(staleness_bars({}).empty());
  CHECK(staleness_bars({5, 0, 10}) == "staleness   0:      5 " + bar(25) +
                                          "\nstaleness   1:      0 "
                                          "\nstaleness   2:     10 " +
                                          bar(50) + "\n");
}

TEST_CASE("updates as a file", "[update_log]") {
  const ddp::test::TemporaryFolder folder;
  UpdateLog log;
  log.add({0, 2, 1, 0.5});
  log.add({1, 0, 0, 0.25});
  log.write_csv(folder / "updates.csv");
  CHECK(ddp::test::read_file(folder / "updates.csv") ==
        "update,worker,staleness,loss\n0,2,1,0.5\n1,0,0,0.25\n");
  CHECK_THROWS_WITH(
      log.write_csv(folder / "none/updates.csv"),
      Catch::Contains("Expected to write " + (folder / "none/updates.csv")));
}

}  // namespace update_log_test
}  // namespace samples
