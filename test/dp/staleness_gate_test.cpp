#include "dp/servers/detail/staleness_gate.h"

#include <algorithm>
#include <random>

#include "test/support/catch.h"

namespace dp::detail {
namespace staleness_gate_test {

std::optional<StalenessGate::Update> update_after_push(StalenessGate& gate,
                                                       int worker) {
  gate.push(worker);
  return gate.next_update();
}

void take(StalenessGate& gate, int worker) {
  gate.ask(worker);
  REQUIRE(gate.may_take(worker));
  gate.take(worker);
}

TEST_CASE("bound 0 lets one worker compute at a time", "[staleness_gate]") {
  StalenessGate gate(0);
  take(gate, 0);
  gate.ask(1);
  CHECK_FALSE(gate.may_take(1));
  const auto update = update_after_push(gate, 0);
  REQUIRE(update);
  CHECK(update->staleness == 0);
  CHECK(gate.may_take(1));
}

TEST_CASE("at most bound + 1 workers compute", "[staleness_gate]") {
  const int64_t bound = GENERATE(0, 1, 4);
  StalenessGate gate(bound);
  for (int worker = 0; worker <= bound; ++worker) {
    take(gate, worker);
  }
  const int next = static_cast<int>(bound) + 1;
  gate.ask(next);
  CHECK_FALSE(gate.may_take(next));
  gate.drop(0);
  CHECK(gate.may_take(next));
}

TEST_CASE("fast workers wait for the slow one at the bound",
          "[staleness_gate]") {
  StalenessGate gate(2);
  take(gate, 0);  // slow
  for (int64_t round = 0; round < 2; ++round) {
    take(gate, 1);
    CHECK(update_after_push(gate, 1));
  }
  take(gate, 1);
  CHECK_FALSE(update_after_push(gate, 1));  // 0's would be 3 updates stale
  const auto slow = update_after_push(gate, 0);
  REQUIRE(slow);
  CHECK(slow->worker == 0);
  CHECK(slow->staleness == 2);
  const auto fast = gate.next_update();
  REQUIRE(fast);
  CHECK(fast->worker == 1);
  CHECK(fast->staleness == 1);
  CHECK_FALSE(gate.next_update());
}

TEST_CASE("a worker that dies holds up nobody", "[staleness_gate]") {
  StalenessGate gate(1);
  take(gate, 0);
  take(gate, 1);
  REQUIRE(update_after_push(gate, 1));
  take(gate, 1);
  CHECK_FALSE(update_after_push(gate, 1));
  gate.drop(0);
  CHECK(gate.next_update());
  // A push before the death is still applied.
  StalenessGate other(1);
  take(other, 0);
  other.push(0);
  other.drop(0);
  CHECK(other.next_update());
}

TEST_CASE("workers get parameters in the order in which they ask",
          "[staleness_gate]") {
  StalenessGate gate(0);
  take(gate, 0);
  gate.ask(1);
  gate.ask(2);
  REQUIRE(update_after_push(gate, 0));
  gate.ask(0);
  CHECK(gate.may_take(1));
  CHECK_FALSE(gate.may_take(2));
  CHECK_FALSE(gate.may_take(0));
  gate.drop(1);
  CHECK(gate.may_take(2));
}

TEST_CASE("of the gradients that wait, the stalest come first",
          "[staleness_gate]") {
  StalenessGate gate(4);
  take(gate, 2);
  take(gate, 1);
  REQUIRE(update_after_push(gate, 1));
  take(gate, 1);
  gate.push(1);
  gate.push(2);
  CHECK(gate.next_update()->worker == 2);
  CHECK(gate.next_update()->worker == 1);
}

/// Workers that use several servers as ParameterClient does: they request
/// parameters in the order of the servers and push to all servers together.
/// Each call of `advance` makes a worker do one action, if possible.
class Simulation {
 public:
  Simulation(int servers, int workers, int64_t bound, int rounds)
      : bound_(bound),
        servers_(servers, StalenessGate(bound)),
        counts_(servers, 0),
        workers_(workers, Worker{rounds, Doing::asks, 0, {}}) {}

  bool is_over() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) {
      return w.doing == Doing::nothing;
    });
  }

  bool can_advance(int worker) const {
    const Worker& w = workers_[worker];
    return w.doing == Doing::takes ? servers_[w.server].may_take(worker)
                                   : w.doing != Doing::nothing;
  }

  void advance(int worker, std::mt19937_64& random) {
    Worker& w = workers_[worker];
    switch (w.doing) {
      case Doing::asks:
        servers_[w.server].ask(worker);
        w.doing = Doing::takes;
        break;
      case Doing::takes:
        servers_[w.server].take(worker);
        w.doing = Doing::asks;
        if (++w.server == static_cast<int>(servers_.size())) {
          w.doing = Doing::pushes;
          for (w.server = 0; w.server < static_cast<int>(servers_.size());
               ++w.server) {
            w.to_push.push_back(w.server);
          }
          std::shuffle(w.to_push.begin(), w.to_push.end(), random);
        }
        break;
      case Doing::pushes:
        servers_[w.to_push.back()].push(worker);
        w.to_push.pop_back();
        if (w.to_push.empty()) {
          w.server = 0;
          w.doing = --w.rounds > 0 ? Doing::asks : Doing::nothing;
        }
        break;
      default:
        break;
    }
    apply();
  }

  void kill(int worker) {
    workers_[worker].doing = Doing::nothing;
    for (auto& server : servers_) {
      server.drop(worker);
    }
    apply();
  }

  int64_t updates(int server) const { return counts_[server]; }
  int64_t stalest() const { return stalest_; }

 private:
  enum class Doing { asks, takes, pushes, nothing };
  struct Worker {
    int rounds;
    Doing doing;
    int server;
    std::vector<int> to_push;
  };

  void apply() {
    for (size_t server = 0; server < servers_.size(); ++server) {
      while (const auto update = servers_[server].next_update()) {
        // A plain check, because 160,000 Catch2 assertions would dominate the
        // test's time.
        if (update->staleness < 0 || update->staleness > bound_) {
          FAIL("staleness " << update->staleness << ", bound " << bound_);
        }
        stalest_ = std::max(stalest_, update->staleness);
        ++counts_[server];
      }
    }
  }

  int64_t bound_;
  std::vector<StalenessGate> servers_;
  std::vector<int64_t> counts_;
  std::vector<Worker> workers_;
  int64_t stalest_ = 0;
};

/// Advances workers in a random order, some much slower than others, until no
/// worker has anything left to do. Fails if all workers are blocked before
/// that.
void run_randomly(Simulation& simulation,
                  int workers,
                  std::mt19937_64& random,
                  int kills) {
  std::vector<double> speeds;
  for (int worker = 0; worker < workers; ++worker) {
    speeds.push_back(random() % 4 == 0 ? 0.02 : 1.0);
  }
  while (!simulation.is_over()) {
    std::vector<double> weights;
    for (int worker = 0; worker < workers; ++worker) {
      weights.push_back(simulation.can_advance(worker) ? speeds[worker] : 0);
    }
    if (std::none_of(
            weights.begin(), weights.end(), [](double w) { return w > 0; })) {
      FAIL("nobody can go on");
    }
    std::discrete_distribution<int> choose(weights.begin(), weights.end());
    simulation.advance(choose(random), random);
    if (kills > 0 && random() % 100 == 0) {
      --kills;
      simulation.kill(static_cast<int>(random() % workers));
    }
  }
}

TEST_CASE("any interleaving goes on and keeps the bound",
          "[staleness_gate][random]") {
  const int64_t bound = GENERATE(0, 1, 4);
  const int servers = GENERATE(1, 2, 3);
  const int workers = GENERATE(1, 2, 3, 6);
  constexpr int kRounds = 8;
  int64_t stalest = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    Simulation simulation(servers, workers, bound, kRounds);
    run_randomly(simulation, workers, random, /*kills=*/0);
    for (int server = 0; server < servers; ++server) {
      REQUIRE(simulation.updates(server) == kRounds * workers);
    }
    stalest = std::max(stalest, simulation.stalest());
  }
  // The largest staleness reaches the bound.
  CHECK(stalest == (workers == 1 ? 0 : bound));
}

TEST_CASE("any interleaving with deaths goes on and keeps the bound",
          "[staleness_gate][random]") {
  const int64_t bound = GENERATE(0, 1, 4);
  const int servers = GENERATE(1, 2, 3);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    Simulation simulation(servers, 5, bound, 8);
    run_randomly(simulation, 5, random, /*kills=*/3);
  }
}

}  // namespace staleness_gate_test
}  // namespace dp::detail
