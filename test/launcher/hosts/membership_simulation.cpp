#include "test/launcher/hosts/membership_simulation.h"

#include <algorithm>
#include <stdexcept>

#include "launcher/base/overloaded.h"

namespace launcher::test {

MembershipSimulation::MembershipSimulation(uint64_t seed) : random_(seed) {
  terms_.least_hosts = between(1, 3);
  terms_.most_hosts = terms_.least_hosts + between(0, 2);
  terms_.max_restarts = between(0, 2);
  terms_.ranks_are_fixed = one_in(4);
  if (terms_.ranks_are_fixed) {
    terms_.least_hosts = terms_.most_hosts;
  }
  oracle_.emplace(terms_);
  coordinator_.emplace(Coordinator::Options{.own_id = "host0",
                                            .terms = terms_,
                                            .token = "secret",
                                            .timeouts = short_timeouts()},
                       time());
  const int count = terms_.most_hosts + between(-1, 1);
  for (int index = 0; index < std::max(count, 1); ++index) {
    // The coordinator's own host starts first.
    start_host(index == 0 ? 0ms : up_to(index % 2 == 0 ? 6s : 1s));
  }
  for (int troubles = between(0, 3); troubles > 0; --troubles) {
    add({.at = up_to(kCalm), .kind = Kind::trouble});
  }
}

void MembershipSimulation::run() {
  for (int events = 0; step(); ++events) {
    if (events > kMostEvents || elapsed_ > kEnd) {
      fail("it does not end");
    }
  }
  for (const Host& host : hosts_) {
    if (!host.is_over) {
      fail("a host waits for ever");
    }
  }
}

RendezvousTimeouts MembershipSimulation::short_timeouts() {
  return {.join = 10s, .last_call = 2s, .keep_alive = 1s};
}

void MembershipSimulation::fail(const std::string& what) {
  throw std::runtime_error(what);
}

void MembershipSimulation::require(bool truth, const char* what) {
  if (!truth) {
    fail(what);
  }
}

int MembershipSimulation::between(int least, int most) {
  return least +
         static_cast<int>(random_() % static_cast<uint64_t>(most - least + 1));
}

MembershipSimulation::Duration MembershipSimulation::up_to(Duration most) {
  return Duration(between(0, static_cast<int>(most.count())));
}

void MembershipSimulation::add(Happening happening) {
  happening.order = ++order_;
  queue_.push_back(std::move(happening));
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

void MembershipSimulation::add_later(Duration delay, Happening happening) {
  happening.at = elapsed_ + delay;
  add(std::move(happening));
}

void MembershipSimulation::start_host(Duration at) {
  Host host;
  host.id = "host" + std::to_string(hosts_.size());
  host.workers = between(1, 3);
  Hello hello;
  hello.token = "secret";
  hello.terms = terms_;
  hello.id = hello.host = host.id;
  hello.role = one_in(3) ? "b" : "a";
  hello.worker_count = host.workers;
  if (terms_.ranks_are_fixed) {
    hello.wanted_rank = fixed_rank(hosts_.size());
  } else if (one_in(3)) {
    hello.wanted_rank = between(0, 3);
  }
  host.member.emplace(RendezvousClient::Options{
      .hello = hello, .endpoint = "e:1", .timeouts = short_timeouts()});
  hosts_.push_back(std::move(host));
  add({.at = at, .kind = Kind::start, .host = hosts_.size() - 1});
}

bool MembershipSimulation::step() {
  std::optional<Duration> next;
  Host* due = nullptr;
  const auto consider = [&](Time deadline, Time now, Host* host) {
    const auto delay = std::chrono::ceil<Duration>(deadline - now);
    const Duration at = elapsed_ + std::max(delay, 0ms);
    if (!next || at < *next) {
      next = at;
      due = host;
    }
  };
  bool does_anyone_wait = false;
  for (Host& host : hosts_) {
    does_anyone_wait = does_anyone_wait || !host.is_over;
    if (!host.is_over) {
      if (const auto deadline = host.member->next_deadline()) {
        consider(*deadline, time_of(host), &host);
      }
    }
  }
  if (!does_anyone_wait) {
    return false;
  }
  if (coordinator_ && !coordinator_->is_done()) {
    consider(coordinator_->next_deadline(), coordinator_time(), nullptr);
  }
  if (!queue_.empty() && (!next || queue_.front().at <= *next)) {
    std::pop_heap(queue_.begin(), queue_.end(), Later());
    const Happening happening = std::move(queue_.back());
    queue_.pop_back();
    elapsed_ = std::max(elapsed_, happening.at);
    handle(happening);
    return true;
  }
  if (!next) {
    return false;
  }
  elapsed_ = *next;
  if (due != nullptr) {
    perform(*due, due->member->on_time(time_of(*due)));
  } else {
    perform(coordinator_->on_time(coordinator_time()));
  }
  return true;
}

void MembershipSimulation::handle(const Happening& event) {
  if (event.kind == Kind::trouble) {
    make_trouble();
    return;
  }
  if (event.kind == Kind::coordinator_gone) {
    end_coordinator();
    return;
  }
  Host& host = hosts_[event.host];
  const bool is_linked = host.link == event.connection && !host.is_over;
  switch (event.kind) {
    case Kind::start:
      perform(host, host.member->join(next_port_++, time_of(host)));
      break;
    case Kind::to_coordinator:
      if (coordinator_) {
        perform(coordinator_->on_message(
            event.connection, event.message, coordinator_time()));
      }
      break;
    case Kind::to_host:
      if (is_linked) {
        perform(host, host.member->on_message(event.message, time_of(host)));
      }
      break;
    case Kind::opened:
      if (is_linked) {
        perform(host, host.member->on_connected(host.id, time_of(host)));
      }
      break;
    case Kind::closed_there:
      if (coordinator_) {
        perform(coordinator_->on_closed(event.connection, coordinator_time()));
      }
      break;
    case Kind::closed_here:
      if (is_linked) {
        host.link.reset();
        perform(host,
                host.member->on_closed(
                    time_of(host), "", /*is_gone=*/!coordinator_));
      }
      break;
    case Kind::workers_end:
      if (host.attempt == event.attempt && host.is_working) {
        end_workers(event.host);
      }
      break;
    case Kind::workers_gone:
      if (host.attempt == event.attempt && !host.is_over) {
        go_on(event.host);
      }
      break;
    case Kind::trouble:
    case Kind::coordinator_gone:
      break;
  }
}

void MembershipSimulation::make_trouble() {
  if (is_calm()) {
    return;
  }
  const size_t victim =
      static_cast<size_t>(between(0, static_cast<int>(hosts_.size()) - 1));
  Host& host = hosts_[victim];
  switch (between(0, 5)) {
    case 0:  // killed; may be started again
      if (victim != 0 || one_in(4)) {
        end(victim);
        if (one_in(2)) {
          start_host(elapsed_ + up_to(3s));
        }
      }
      break;
    case 1:  // asked to end
      if (!host.is_over && (victim != 0 || one_in(4))) {
        perform(host, host.member->leave());
        end(victim);
      }
      break;
    case 2:
      host.clock += up_to(30s);
      break;
    case 3:
      coordinator_clock_ += up_to(30s);
      break;
    case 4:  // a connection is cut; one end or both are notified
      if (host.link && *host.link != kOwn) {
        const int ends = between(1, 3);
        close_ends(victim, (ends & 1) != 0, (ends & 2) != 0);
      }
      break;
    default:
      start_host(elapsed_ + up_to(1s));
      break;
  }
  if (one_in(2)) {
    add_later(up_to(2s), {.kind = Kind::trouble});
  }
}

void MembershipSimulation::end(size_t index) {
  Host& host = hosts_[index];
  host.is_over = true;
  if (host.link && *host.link != kOwn) {
    close_ends(index, /*here=*/false, /*there=*/true);
  }
  if (index == 0) {
    add_later(up_to(1s), {.kind = Kind::coordinator_gone});
  }
}

void MembershipSimulation::end_coordinator() {
  coordinator_.reset();
  for (size_t index = 0; index < hosts_.size(); ++index) {
    if (hosts_[index].link && !hosts_[index].is_over) {
      close_ends(index, /*here=*/true, /*there=*/false);
    }
  }
}

void MembershipSimulation::end_workers(size_t index) {
  Host& host = hosts_[index];
  host.is_working = false;
  if (!is_calm() && one_in(4)) {
    host.has_failed = true;
    perform(
        host,
        host.member->report(HostFailed{0, {.code = 3}, starts_no_more(host)},
                            time_of(host)));
    stop_workers(index);
    return;
  }
  oracle_->on_succeeded(index, host.generation);
  perform(host, host.member->report(HostSucceeded{}, time_of(host)));
}

bool MembershipSimulation::starts_no_more(const Host& host) const {
  return host.restarts >= terms_.max_restarts;
}

void MembershipSimulation::stop_workers(size_t index) {
  add_later(up_to(1s),
            {.kind = Kind::workers_gone,
             .host = index,
             .attempt = hosts_[index].attempt});
}

void MembershipSimulation::go_on(size_t index) {
  Host& host = hosts_[index];
  if (host.has_failed && starts_no_more(host) && !one_in(8)) {
    host.waits_for_end = true;
    return;
  }
  if (host.has_failed && starts_no_more(host)) {  // asked to end
    perform(host, host.member->leave());
    end(index);
    return;
  }
  host.has_failed = false;
  perform(host, host.member->join(next_port_++, time_of(host)));
}

size_t MembershipSimulation::index_of(const Host& host) const {
  return static_cast<size_t>(&host - hosts_.data());
}

}  // namespace launcher::test
