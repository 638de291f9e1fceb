// Random training programs, each determined by a seed. Runs them on ranks and
// compares with plain modules on one thread. To run more of them:
//   DDP_TEST_SECONDS=0 DDP_PROGRAMS=10000 DDP_PROGRAMS_SEED=100
//   random_programs_test
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>

#include <c10/util/ScopeExit.h>

#include "ddp/job/error_text.h"
#include "test/ddp/random_programs/plain_ranks.h"
#include "test/ddp/random_programs/player.h"
#include "test/ddp/random_programs/program.h"
#include "test/ddp/random_programs/values.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/number_from.h"

namespace ddp {
namespace random_programs_test {

using test::Group;
using test::Program;

/// Values of the act's models, indexed by act and rank.
struct Expected {
  std::vector<std::vector<test::NamedValues>> values;
  std::vector<double> tolerances;  // of lossy gradients, by act
  // Parameters with different states of the ranks' optimizers, by act.
  std::vector<std::set<std::string>> apart;
};

/// Returns the models that an act uses.
std::vector<int> models_of(const test::Act& act) {
  return act.kind == test::Act::Kind::pair ? std::vector<int>{0, 1}
                                           : std::vector<int>{act.model};
}

void add(test::NamedValues& values, test::NamedValues&& others) {
  for (auto& other : others) {
    values.push_back(std::move(other));
  }
}

Expected predict(const Program& program) {
  std::deque<test::PlainRanks> models;
  for (int model = 0; model < program.models; ++model) {
    models.emplace_back(program);
  }
  Expected expected;
  for (size_t act = 0; act < program.acts.size(); ++act) {
    expected.values.emplace_back(program.size);
    expected.tolerances.push_back(0);
    expected.apart.emplace_back();
    for (const int model : models_of(program.acts[act])) {
      models[model].perform(act);
      for (int rank = 0; rank < program.size; ++rank) {
        const test::Learner& learner = models[model].rank(rank);
        add(expected.values.back()[rank],
            test::values_of(learner, program.compared(act)));
        expected.tolerances.back() =
            std::max(expected.tolerances.back(), learner.coding_error);
        for (const auto& item : learner.net->named_parameters()) {
          if (!has_same_state(models[model].rank(0), learner, item.key())) {
            expected.apart.back().insert(item.key());
          }
        }
      }
    }
  }
  return expected;
}

/// The models of one rank.
class Players {
 public:
  Players(const Program& program, const Group& group) : program_(program) {
    for (int model = 0; model < program.models; ++model) {
      models_.emplace_back(program, group);
    }
  }

  void perform(size_t index) {
    const auto& act = program_.acts[index];
    if (act.kind != test::Act::Kind::pair) {
      models_[act.model].perform(index);
      return;
    }
    models_[0].begin_train(index);
    models_[1].begin_train(index);
    models_[1].end_train();
    models_[0].end_train();
  }

  test::NamedValues values(size_t index) const {
    test::NamedValues values;
    for (const int model : models_of(program_.acts[index])) {
      add(values, models_[model].values(index));
    }
    return values;
  }

 private:
  const Program& program_;
  std::deque<test::Player> models_;
};

/// Returns "act 3, train ...: Expected p1 to be ...".
std::string at_act(const Program& program,
                   size_t act,
                   const std::string& wrong) {
  return "act " + std::to_string(act) + ", " + describe(program.acts[act]) +
         ": " + wrong;
}

/// Runs the program on its ranks. Returns all differences from `expected`, by
/// rank.
std::string play(const Program& program, const Expected& expected) {
  std::vector<std::vector<test::NamedValues>> got(
      program.acts.size(), std::vector<test::NamedValues>(program.size));
  const auto play_rank = [&](const Group& group) {
    const int rank = group->getRank();
    Players players(program, group);
    for (size_t act = 0; act < program.acts.size(); ++act) {
      std::string wrong;
      try {
        players.perform(act);
        got[act][rank] = players.values(act);
        const auto& values = expected.values[act][rank];
        wrong = program.is_lossy()
                    ? test::first_far_off(
                          values, got[act][rank], expected.tolerances[act])
                    : test::first_difference(values, got[act][rank]);
      } catch (const test::ProgramEnd&) {
        throw;
      } catch (const std::exception& /*error*/) {
        wrong = detail::text_of(std::current_exception());
      }
      if (!wrong.empty()) {
        throw std::runtime_error(at_act(program, act, wrong));
      }
    }
  };
  if (program.gathers_shards) {
    ::setenv("DDP_SHARED_MEMORY", "0", 1);
  }
  const auto with_memory =
      c10::make_scope_exit([] { ::unsetenv("DDP_SHARED_MEMORY"); });
  // Over Gloo, and in shared memory.
  auto errors = program.seed % 2 == 0
                    ? test::try_ranks(program.size, play_rank)
                    : test::try_host_ranks(program.size, play_rank);
  const std::string end = test::ProgramEnd().what();
  const auto has_ended = [&](const std::string& error) { return error == end; };
  if (std::all_of(errors.begin(), errors.end(), has_ended)) {
    return "";
  }
  std::string all;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    all += errors[rank].empty()
               ? ""
               : "\nrank " + std::to_string(rank) + ": " + errors[rank];
  }
  for (size_t act = 0; all.empty() && act < program.acts.size(); ++act) {
    const auto parting = test::first_parting(
        expected.values[act], got[act], expected.apart[act]);
    all += parting.empty() ? "" : at_act(program, act, parting);
  }
  return all;
}

std::string run(const Program& program) {
  try {
    return play(program, predict(program));
  } catch (const std::exception& /*error*/) {
    return detail::text_of(std::current_exception());
  }
}

/// Returns seeds of few programs that together have every kind of part, option
/// and act: adds the program with the most new kinds until no kind is missing.
std::vector<uint64_t> covering_seeds() {
  constexpr uint64_t kTried = 4000;
  std::vector<std::set<std::string>> kinds;
  std::set<std::string> missing;
  for (uint64_t seed = 0; seed < kTried; ++seed) {
    kinds.push_back(kinds_of(test::random_program(seed)));
    missing.insert(kinds.back().begin(), kinds.back().end());
  }
  std::vector<uint64_t> chosen;
  while (!missing.empty()) {
    const auto count = [&](const std::set<std::string>& some) {
      return std::count_if(some.begin(), some.end(), [&](const auto& kind) {
        return missing.count(kind) > 0;
      });
    };
    const auto best = std::max_element(
        kinds.begin(), kinds.end(), [&](const auto& a, const auto& b) {
          return count(a) < count(b);
        });
    for (const auto& kind : *best) {
      missing.erase(kind);
    }
    chosen.push_back(static_cast<uint64_t>(best - kinds.begin()));
  }
  return chosen;
}

std::vector<uint64_t> seeds() {
  const uint64_t count = test::number_from("DDP_PROGRAMS", 0);
  if (count == 0) {
    return covering_seeds();
  }
  std::vector<uint64_t> seeds(count);
  std::iota(
      seeds.begin(), seeds.end(), test::number_from("DDP_PROGRAMS_SEED", 1));
  return seeds;
}

/// Returns a line per change, "312 x load wrapper": the number of programs that
/// have this change.
std::string counted_changes(const std::vector<uint64_t>& seeds) {
  std::map<std::string, int> counts;
  for (const uint64_t seed : seeds) {
    for (const auto& change : changes_of(test::random_program(seed))) {
      ++counts[change];
    }
  }
  std::ostringstream text;
  for (const auto& [change, count] : counts) {
    text << "\n" << count << " x " << change;
  }
  return text.str();
}

TEST_CASE("random programs train as plain modules do", "[programs]") {
  const auto all = seeds();
  for (const uint64_t seed : all) {
    const auto program = test::random_program(seed);
    INFO(describe(program));
    CHECK(run(program) == "");
  }
  if (test::number_from("DDP_PROGRAMS", 0) > 0) {
    WARN("Of " << all.size() << " programs" << counted_changes(all));
  }
}

}  // namespace random_programs_test
}  // namespace ddp
