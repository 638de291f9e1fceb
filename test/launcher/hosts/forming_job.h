#pragma once

#include <map>
#include <optional>
#include <string>

#include "launcher/base/overloaded.h"
#include "launcher/hosts/coordinator/coordinator.h"
#include "test/support/catch.h"

namespace launcher::test {

using namespace std::chrono_literals;

/// Connection of the host that runs the coordinator.
constexpr Coordinator::Connection kOwn = 0;

inline std::string said(const Message& message) {
  return std::visit(
      Overloaded{
          [](const Noted&) -> std::string { return "noted"; },
          [](const WorldFormed& formed) {
            return "formed " + std::to_string(formed.world.generation);
          },
          [](const Broken& broken) {
            constexpr const char* kNames[] = {
                "joined", "left", "vanished", "failed"};
            return "broken " + std::to_string(broken.generation) + ": " +
                   broken.why.host + " " +
                   kNames[static_cast<int>(broken.why.change)];
          },
          [](const JobClosed& closed) {
            return "closed " + std::to_string(closed.exit_code);
          },
          [](const RendezvousLost&) -> std::string { return "refused"; },
          [](const auto&) -> std::string { return "?"; },
      },
      message);
}

/// Returns the actions as text: "1 noted, 2 formed 0, drop 3".
inline std::string said(const Coordinator::Actions& actions) {
  std::string text;
  for (const auto& action : actions) {
    text += text.empty() ? "" : ", ";
    if (const auto* send = std::get_if<Coordinator::Send>(&action)) {
      text += std::to_string(send->to) + " " + said(send->message);
    } else {
      text += "drop " +
              std::to_string(std::get<Coordinator::Drop>(action).connection);
    }
  }
  return text;
}

/// A job with the coordinator on host "a", connection 0. "b" is on 1, "c" on 2.
struct FormingJob {
  JobTerms terms{
      .run_id = "job", .least_hosts = 2, .most_hosts = 3, .max_restarts = 1};
  std::string token{};
  std::string advice{};
  RendezvousTimeouts timeouts{};
  Coordinator::Time now{Coordinator::Time() + 1h};
  std::optional<Coordinator> coordinator{};
  std::map<Coordinator::Connection, HostState> states{};

  Coordinator& get() {
    if (!coordinator) {
      coordinator.emplace(Coordinator::Options{.own_id = "a",
                                               .terms = terms,
                                               .token = token,
                                               .advice = advice,
                                               .timeouts = timeouts},
                          now);
    }
    return *coordinator;
  }

  Hello hello(Coordinator::Connection from) const {
    Hello hello;
    hello.token = token;
    hello.terms = terms;
    hello.host = std::string(1, static_cast<char>('a' + from));
    hello.id = hello.host;
    hello.worker_count = static_cast<int>(from) + 1;
    hello.keep_alive = timeouts.keep_alive;
    if (terms.ranks_are_fixed) {
      hello.wanted_rank = static_cast<int>(from);
    }
    return hello;
  }
  std::string say(Coordinator::Connection from, const Message& message) {
    return said(get().on_message(from, message, now));
  }
  /// Ends a connection. The host may come back on another one.
  std::string cut(Coordinator::Connection connection) {
    return said(get().on_closed(connection, now, "reset"));
  }
  /// Ends a connection of a host that does not come back in time.
  std::string close(Coordinator::Connection connection) {
    const std::string told = cut(connection);
    const std::string later = get().closed() ? "" : pass(timeouts.keep_alive);
    return told + (told.empty() || later.empty() ? "" : ", ") + later;
  }
  std::string pass(std::chrono::milliseconds time) {
    std::string text;
    for (const auto end = now + time; now < end;) {
      now = std::min(end, get().next_deadline());
      const std::string next = said(get().on_time(now));
      text += (text.empty() || next.empty() ? "" : ", ") + next;
    }
    return text;
  }

  HostState& next_state(Coordinator::Connection from) {
    HostState& state = states[from];
    ++state.number;
    return state;
  }
  std::string join(Coordinator::Connection from) {
    HostState& state = next_state(from);
    state.joins = true;
    state.store = {"host-" + hello(from).host, 1000};
    return say(from, state);
  }
  std::string come(Coordinator::Connection from) {
    say(from, hello(from));
    return join(from);
  }
  std::string work(Coordinator::Connection from,
                   int generation,
                   std::optional<HostOutcome> outcome = {}) {
    HostState& state = next_state(from);
    state.generation = generation;
    state.joins = false;
    state.outcome = outcome;
    return say(from, state);
  }
  std::string fail(Coordinator::Connection from,
                   int generation,
                   const HostFailed& failure = {7, {.code = 3}}) {
    return work(from, generation, failure);
  }
  std::string succeed(Coordinator::Connection from, int generation) {
    return work(from, generation, HostSucceeded{});
  }

  /// Runs a world with a, b and c, or with a and b.
  void run(int hosts = 3) {
    const auto end = static_cast<Coordinator::Connection>(hosts);
    std::string told;
    for (Coordinator::Connection from = kOwn; from < end; ++from) {
      told = come(from);
    }
    // With fewer hosts than most_hosts, a world forms after the last call.
    while (told.find("formed") == std::string::npos) {
      for (Coordinator::Connection from = kOwn; from < end; ++from) {
        join(from);
      }
      told = pass(1s);
    }
    CHECK(told == std::string("0 formed 0, 1 formed 0") +
                      (hosts == 3 ? ", 2 formed 0" : ""));
    for (Coordinator::Connection from = kOwn; from < end; ++from) {
      CHECK(work(from, 0) == std::to_string(from) + " noted");
    }
  }
};

}  // namespace launcher::test
