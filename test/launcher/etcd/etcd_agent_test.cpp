#include "launcher/hosts/etcd/etcd_agent.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <stdexcept>

#include "launcher/base/overloaded.h"
#include "test/launcher/schedules.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace std::chrono_literals;

namespace {

using Duration = std::chrono::milliseconds;

/// An etcd with two keys, in memory. As in etcd, a lease lives as long as it is
/// renewed, independent of its key. A key expires with the lease of its last
/// write.
class FakeEtcd {
 public:
  EtcdAnswer answer(const EtcdCall& call, Duration now) {
    expire(now);
    EtcdAnswer answer;
    switch (call.kind) {
      case EtcdCall::Kind::wait:
      case EtcdCall::Kind::read:
        return read(EtcdAnswer::Outcome::done);
      case EtcdCall::Kind::campaign:
        if (revision_of(coordinator_) != call.coordinator_revision ||
            revision_of(record_) != call.record_revision) {
          return read(EtcdAnswer::Outcome::denied);
        }
        answer.leases = {grant(call.coordinator_time, now),
                         grant(call.record_time, now)};
        ++revision_;
        coordinator_ = {call.coordinator, answer.leases.coordinator, revision_};
        record_ = {call.record, answer.leases.record, revision_};
        break;
      case EtcdCall::Kind::save:
        if (revision_of(coordinator_) != call.coordinator_revision) {
          return read(EtcdAnswer::Outcome::denied);
        }
        if (leases_.count(call.leases.record) == 0) {
          return {.outcome = EtcdAnswer::Outcome::hopeless,
                  .text = "requested lease not found"};
        }
        record_ = {call.record, call.leases.record, ++revision_};
        if (call.gives_up) {
          coordinator_.reset();
        }
        break;
      case EtcdCall::Kind::renew: {
        const bool are_alive = renew(call.leases.coordinator, now) &&
                               renew(call.leases.record, now);
        if (!are_alive ||
            revision_of(coordinator_) != call.coordinator_revision) {
          return read(EtcdAnswer::Outcome::denied);
        }
        break;
      }
    }
    answer.outcome = EtcdAnswer::Outcome::done;
    answer.revision = revision_;
    return answer;
  }

 private:
  struct Key {
    std::string value;
    int64_t lease;
    int64_t revision;
  };
  struct Lease {
    Duration time;
    Duration end;
  };

  static int64_t revision_of(const std::optional<Key>& key) {
    return key ? key->revision : 0;
  }
  EtcdAnswer read(EtcdAnswer::Outcome outcome) const {
    const auto entry_of = [](const std::optional<Key>& key) {
      return key ? std::optional(EtcdEntry{key->value, key->revision})
                 : std::nullopt;
    };
    return {.outcome = outcome,
            .coordinator = entry_of(coordinator_),
            .record = entry_of(record_)};
  }
  int64_t grant(Duration time, Duration now) {
    leases_[++last_lease_] = {time, now + time};
    return last_lease_;
  }
  bool renew(int64_t lease, Duration now) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) {
      return false;
    }
    found->second.end = now + found->second.time;
    return true;
  }
  void expire(Duration now) {
    for (auto lease = leases_.begin(); lease != leases_.end();) {
      lease = now >= lease->second.end ? leases_.erase(lease) : ++lease;
    }
    for (std::optional<Key>* key : {&coordinator_, &record_}) {
      if (*key && leases_.count((*key)->lease) == 0) {
        key->reset();
      }
    }
  }

  std::optional<Key> coordinator_;
  std::optional<Key> record_;
  std::map<int64_t, Lease> leases_;
  int64_t revision_ = 1;
  int64_t last_lease_ = 0;
};

/// Simulates hosts, their connections and an etcd, all of which can fail. One
/// seed determines one schedule.
class EtcdSimulation {
 public:
  explicit EtcdSimulation(uint64_t seed) : random_(seed) {
    terms_.run_id = "job";
    terms_.least_hosts = between(1, 2);
    terms_.most_hosts = terms_.least_hosts + between(0, 2);
    terms_.max_restarts = between(0, 2);
    for (int count = terms_.most_hosts; count > 0; --count) {
      add_host(up_to(1s));
    }
    for (int troubles = between(0, 4); troubles > 0; --troubles) {
      add(up_to(kCalm), [this] { make_trouble(); });
    }
  }

  void run() {
    for (int steps = 0; step(); ++steps) {
      if (steps > 50'000 || elapsed_ > 300s) {
        throw std::runtime_error("it does not end");
      }
    }
  }

  bool has_taken_over() const { return coordinators_.size() > 1; }

 private:
  static constexpr Duration kCalm = 8s;
  static constexpr Duration kStopTime = 3s;

  /// The workers of one generation of a run.
  struct Group {
    std::map<int, World> seats;
    std::set<size_t> running;  // hosts
    Duration time{0};          // duration of its workers
    bool is_whole() const {
      return !seats.empty() && static_cast<int>(running.size()) ==
                                   seats.begin()->second.host_count;
    }
  };

  struct SimulatedHost {
    std::string id;
    std::optional<EtcdAgent> host;
    int attempt = 0;
    int call = 0;
    size_t peer = 0;  // other end of the link
    std::optional<uint64_t> link;
    Group* group = nullptr;  // of its workers
    std::string run;         // tells runs with one id apart, by coordinator
    bool is_over = false;
    bool is_cut_off = false;  // from etcd
  };

  int between(int least, int most) {
    return least + static_cast<int>(random_() %
                                    static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int count) { return between(1, count) == 1; }
  Duration up_to(Duration most) {
    return Duration(between(0, static_cast<int>(most.count())));
  }
  EtcdAgent::Time time() const { return EtcdAgent::Time() + 1h + elapsed_; }
  bool is_calm() const { return elapsed_ >= kCalm; }

  void add(Duration delay, std::function<void()> what) {
    queue_.emplace(std::pair(elapsed_ + delay, ++order_), std::move(what));
  }

  void add_host(Duration at) {
    const size_t index = hosts_.size();
    SimulatedHost& host = hosts_.emplace_back();
    host.id = "host" + std::to_string(index);
    EtcdConfig config;
    config.terms = terms_;
    config.start_hosts = terms_.most_hosts;
    config.timeouts = {.join = 20s,
                       .last_call = Duration(one_in(2) ? 50 : 1000),
                       .keep_alive = 1s};
    config.terms.ending = ending_time(config.timeouts, kStopTime);
    config.etcd.lease = least_lease_time(config);
    Hello hello;
    hello.terms = config.terms;
    hello.id = hello.host = host.id;
    hello.keep_alive = 1s;
    host.host.emplace(EtcdAgent::Options{config, hello, "etcd"});
    add(at, [this, index] { join(index); });
  }

  bool step() {
    bool does_anyone_wait = false;
    std::optional<std::pair<Duration, size_t>> next;
    for (size_t index = 0; index < hosts_.size(); ++index) {
      does_anyone_wait = does_anyone_wait || !hosts_[index].is_over;
      const auto deadline = hosts_[index].is_over
                                ? std::nullopt
                                : hosts_[index].host->next_deadline();
      if (deadline) {
        const Duration at =
            elapsed_ + std::max(std::chrono::ceil<Duration>(*deadline - time()),
                                Duration(0));
        if (!next || at < next->first) {
          next = {at, index};
        }
      }
    }
    if (!does_anyone_wait) {
      return false;
    }
    if (!queue_.empty() &&
        (!next || queue_.begin()->first.first <= next->first)) {
      auto entry = queue_.extract(queue_.begin());
      elapsed_ = std::max(elapsed_, entry.key().first);
      entry.mapped()();
      return true;
    }
    if (!next) {
      throw std::runtime_error("a host waits for ever");
    }
    elapsed_ = next->first;
    perform(next->second, hosts_[next->second].host->on_time(time()));
    return true;
  }

  void join(size_t index) {
    if (!hosts_[index].is_over) {
      perform(index, hosts_[index].host->join(++ports_, time()));
    }
  }

  void perform(size_t index, const EtcdAgent::Actions& actions) {
    for (const auto& action : actions) {
      std::visit([&](const auto& known) { act(index, known); }, action);
    }
  }

  void act(size_t index, const EtcdCall& asked) {
    EtcdCall call = asked;
    const int number = ++hosts_[index].call;
    call.coordinator = encode(
        CoordinatorPlace{hosts_[index].id,
                         hosts_[index].id,
                         {hosts_[index].id, static_cast<int>(index) + 1}});
    const bool is_lost_there = !is_calm() && (one_in(12) || is_etcd_down_);
    add(call.kind == EtcdCall::Kind::wait ? 500ms : up_to(50ms),
        [this, index, call, number, is_lost_there] {
          if (hosts_[index].is_over || hosts_[index].call != number) {
            return;
          }
          const bool is_down =
              is_lost_there || hosts_[index].is_cut_off || is_etcd_down_;
          EtcdAnswer answer = is_down ? EtcdAnswer{.text = "down"}
                                      : etcd_.answer(call, elapsed_);
          if (!is_calm() && one_in(12)) {
            answer = EtcdAnswer{.text = "its answer is lost"};
          }
          add(up_to(50ms), [this, index, number, answer] {
            SimulatedHost& host = hosts_[index];
            if (!host.is_over && host.call == number) {
              perform(index, host.host->on_answer(answer, time()));
            }
          });
        });
  }

  void act(size_t index, const EtcdAgent::Connect& connect) {
    SimulatedHost& host = hosts_[index];
    const size_t peer =
        connect.to ? static_cast<size_t>(connect.to->port) - 1 : index;
    const uint64_t link = ++last_link_;
    host.link = link;
    host.peer = peer;
    add(up_to(20ms), [this, index, peer, link] {
      SimulatedHost& host = hosts_[index];
      if (host.link != link || host.is_over) {
        return;
      }
      // A firewall may refuse a connection, too.
      const bool is_refused = peer != index && !is_calm() && one_in(10);
      if (hosts_[peer].is_over || is_refused ||
          !hosts_[peer].host->is_coordinator()) {
        host.link.reset();
        perform(index,
                host.host->on_closed(RendezvousClient::Loss::refused, time()));
        return;
      }
      guests_[link] = index;
      perform(index, host.host->on_connected(host.id, time()));
    });
  }

  void act(size_t index, const EtcdAgent::Disconnect&) {
    cut(index, /*tells_host=*/false);
  }

  /// Ends a host's connection. The coordinator is notified, and the host if
  /// `tells_host`.
  void cut(size_t index, bool tells_host) {
    const auto link = std::exchange(hosts_[index].link, std::nullopt);
    if (!link) {
      return;
    }
    const size_t peer = hosts_[index].peer;
    add(up_to(20ms), [this, link, peer] {
      if (guests_.erase(*link) > 0 && !hosts_[peer].is_over) {
        perform(peer, hosts_[peer].host->on_host_closed(*link, time()));
      }
    });
    if (tells_host) {
      add(up_to(20ms), [this, index] {
        if (!hosts_[index].is_over && !hosts_[index].link) {
          perform(index,
                  hosts_[index].host->on_closed(RendezvousClient::Loss::other,
                                                time()));
        }
      });
    }
  }

  void act(size_t index, const EtcdAgent::SendToCoordinator& send) {
    const auto link = hosts_[index].link;
    if (link) {
      add(20ms,
          [this, link, peer = hosts_[index].peer, message = send.message] {
            if (guests_.count(*link) > 0 && !hosts_[peer].is_over) {
              perform(
                  peer,
                  hosts_[peer].host->on_host_message(*link, message, time()));
            }
          });
    }
  }

  void act(size_t from, const Coordinator::Send& send) {
    const auto guest = guests_.find(send.to);
    if (guest != guests_.end()) {
      add(20ms,
          [this,
           send,
           index = guest->second,
           run = hosts_[from].host->saved().job] {
            if (hosts_[index].link == send.to && !hosts_[index].is_over) {
              hosts_[index].run = run;
              perform(index,
                      hosts_[index].host->on_message(send.message, time()));
            }
          });
    }
  }

  void act(size_t, const Coordinator::Drop& drop) {
    const auto guest = guests_.find(drop.connection);
    if (guest != guests_.end() &&
        hosts_[guest->second].link == drop.connection) {
      const size_t index = guest->second;
      add(25ms, [this, index, link = drop.connection] {
        if (hosts_[index].link == link) {
          cut(index, /*tells_host=*/true);
        }
      });
    }
  }

  void act(size_t index, const EtcdAgent::CloseListeners&) {
    for (size_t other = 0; other < hosts_.size(); ++other) {
      if (hosts_[other].link && hosts_[other].peer == index) {
        cut(other, /*tells_host=*/true);
      }
    }
  }

  void act(size_t index, const RendezvousAnswer& answer) {
    std::visit([&](const auto& known) { take(index, known); }, answer);
  }
  static void take(size_t, const RendezvousNote&) {}
  void take(size_t index, const RendezvousLost&) { end_after_workers(index); }
  void take(size_t index, const JobClosed&) { end_after_workers(index); }
  void take(size_t index, const WorldBroken&) {
    const int attempt = ++hosts_[index].attempt;
    add(up_to(kStopTime), [this, index, attempt] {
      if (hosts_[index].attempt == attempt) {
        stop_workers(index);
        join(index);
      }
    });
  }
  void stop_workers(size_t index) {
    if (Group* group = std::exchange(hosts_[index].group, nullptr)) {
      group->running.erase(index);
    }
  }
  void check_groups() const {
    const auto count =
        std::count_if(groups_.begin(), groups_.end(), [](const auto& named) {
          return named.second.is_whole();
        });
    if (count > 1) {
      throw std::runtime_error("two groups train at a time");
    }
  }
  void take(size_t index, const WorldFormed& formed) {
    const World& world = formed.world;
    const std::string run = hosts_[index].host->is_coordinator()
                                ? hosts_[index].host->saved().job
                                : hosts_[index].run;
    Group& group = groups_[{run, world.generation}];
    if (group.seats.empty()) {
      coordinators_.insert(world.generation);
      group.time = 1s + up_to(one_in(3) ? 20s : 4s);
    }
    for (const auto& [rank, other] : group.seats) {
      if (other.master.port != world.master.port ||
          other.world_size != world.world_size) {
        throw std::runtime_error("two groups of one generation");
      }
    }
    if (!group.seats.emplace(world.host_rank, world).second) {
      throw std::runtime_error("two hosts with one rank");
    }
    stop_workers(index);
    group.running.insert(index);
    hosts_[index].group = &group;
    check_groups();
    const int attempt = ++hosts_[index].attempt;
    const bool fails = !is_calm() && one_in(6);
    add(fails ? up_to(4s) : group.time, [this, index, attempt, fails] {
      SimulatedHost& host = hosts_[index];
      if (host.attempt != attempt || host.is_over) {
        return;
      }
      stop_workers(index);
      if (!fails) {
        perform(index, host.host->report(HostSucceeded{}, time()));
        return;
      }
      perform(index, host.host->report(HostFailed{0, {.code = 3}}, time()));
      const int next = ++host.attempt;
      add(up_to(300ms), [this, index, next] {
        if (hosts_[index].attempt == next) {
          join(index);
        }
      });
    });
  }

  void leave(size_t index) {
    if (!hosts_[index].is_over) {
      perform(index, hosts_[index].host->leave(time()));
      end_after_workers(index);
    }
  }
  /// Ends a host after its workers, which take some time.
  void end_after_workers(size_t index) {
    ++hosts_[index].attempt;
    add(up_to(kStopTime), [this, index] {
      if (!hosts_[index].is_over) {
        stop_workers(index);
        perform(index, hosts_[index].host->end(time()));
        end_when_over(index);
      }
    });
  }
  void end_when_over(size_t index) {
    if (hosts_[index].host->is_over()) {
      end(index);
    } else if (!hosts_[index].is_over) {
      add(100ms, [this, index] { end_when_over(index); });
    }
  }

  void end(size_t index) {
    stop_workers(index);
    hosts_[index].is_over = true;
    act(index, EtcdAgent::CloseListeners{});
    cut(index, /*tells_host=*/false);
  }

  void make_trouble() {
    if (is_calm()) {
      return;
    }
    const auto index =
        static_cast<size_t>(between(0, static_cast<int>(hosts_.size()) - 1));
    switch (between(0, 4)) {
      case 0:  // killed; may be started again
        end(index);
        if (one_in(2)) {
          add_host(up_to(2s));
        }
        break;
      case 1:
        leave(index);
        break;
      case 2:
        is_etcd_down_ = true;
        add(up_to(6s), [this] { is_etcd_down_ = false; });
        break;
      case 3:
        cut_off_from_etcd(one_in(2) ? index : coordinator_or(index));
        break;
      default:
        cut(index, /*tells_host=*/true);
        break;
    }
    if (one_in(2)) {
      add(up_to(2s), [this] { make_trouble(); });
    }
  }

  size_t coordinator_or(size_t index) const {
    for (size_t host = 0; host < hosts_.size(); ++host) {
      if (!hosts_[host].is_over && hosts_[host].host->is_coordinator()) {
        return host;
      }
    }
    return index;
  }
  /// Cuts a host off from etcd. Its connections to other hosts stay, and new
  /// ones are possible.
  void cut_off_from_etcd(size_t index) {
    hosts_[index].is_cut_off = true;
    // Sometimes longer than etcd keeps the job's record.
    const Duration most = one_in(8) ? Duration(100s) : Duration(20s);
    add(up_to(most), [this, index] { hosts_[index].is_cut_off = false; });
    if (one_in(2)) {
      add_host(up_to(most / 2));
    }
  }

  std::mt19937_64 random_;
  JobTerms terms_;
  FakeEtcd etcd_;
  bool is_etcd_down_ = false;
  std::deque<SimulatedHost> hosts_;
  std::map<uint64_t, size_t> guests_;
  std::map<std::pair<std::string, int>, Group> groups_;
  std::set<int> coordinators_;
  std::map<std::pair<Duration, int64_t>, std::function<void()>> queue_;
  Duration elapsed_{0};
  int64_t order_ = 0;
  uint64_t last_link_ = 0;
  int ports_ = 0;
};

}  // namespace

TEST_CASE("hosts and etcd are lost: one group at a time, and an end") {
  const auto [first, last] = launcher::test::schedules(/*count=*/1000);
  int changes = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    try {
      EtcdSimulation simulation(seed);
      simulation.run();
      changes += simulation.has_taken_over() ? 1 : 0;
    } catch (const std::exception& error) {
      FAIL("schedule " << seed << ": " << error.what());
    }
  }
  CHECK(changes > 0);
}
