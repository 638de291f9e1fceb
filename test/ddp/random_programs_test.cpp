// Training programs of which a seed decides everything, on ranks beside plain
// modules on one thread. More of them by hand:
//   DDP_TEST_SECONDS=0 DDP_PROGRAMS=10000 DDP_PROGRAMS_SEED=100
//   random_programs_test
#include <cstdlib>
#include <stdexcept>

#include "ddp/detail/job_files/error_text.h"
#include "test/ddp/random_programs/plain_ranks.h"
#include "test/ddp/random_programs/player.h"
#include "test/ddp/random_programs/program.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace random_programs_test {

using test::Group;
using test::Program;

uint64_t number_from(const char* variable, uint64_t usual) {
  const char* asked = std::getenv(variable);
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : usual;
}

/// What each rank has after each act.
using Expected = std::vector<std::vector<test::NamedValues>>;

Expected predict(const Program& program) {
  test::PlainRanks plain(program);
  Expected expected;
  for (size_t act = 0; act < program.acts.size(); ++act) {
    plain.perform(act);
    expected.emplace_back();
    for (int rank = 0; rank < program.size; ++rank) {
      expected.back().push_back(test::values_of(plain.rank(rank)));
    }
  }
  return expected;
}

/// Returns what was not as expected, by rank.
std::string play(const Program& program, const Expected& expected) {
  const auto errors = test::try_ranks(program.size, [&](const Group& group) {
    test::Player player(program, group);
    for (size_t act = 0; act < program.acts.size(); ++act) {
      std::string wrong;
      try {
        player.perform(act);
        wrong = test::first_difference(expected[act][group->getRank()],
                                       test::values_of(player.learner()));
      } catch (const std::exception& /*error*/) {
        wrong = detail::text_of(std::current_exception());
      }
      if (!wrong.empty()) {
        throw std::runtime_error("act " + std::to_string(act) + ", " +
                                 describe(program.acts[act]) + ": " + wrong);
      }
    }
  });
  std::string all;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    all += errors[rank].empty()
               ? ""
               : "\nrank " + std::to_string(rank) + ": " + errors[rank];
  }
  return all;
}

TEST_CASE("random programs train as plain modules do", "[programs]") {
  const uint64_t count = number_from("DDP_PROGRAMS", 8);
  const uint64_t first = number_from("DDP_PROGRAMS_SEED", 1);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const auto program = test::random_program(seed);
    INFO(describe(program));
    CHECK(play(program, predict(program)) == "");
  }
}

}  // namespace random_programs_test
}  // namespace ddp
