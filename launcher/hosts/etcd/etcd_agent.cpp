#include "launcher/hosts/etcd/etcd_agent.h"

#include <algorithm>
#include <utility>

#include "launcher/base/overloaded.h"
#include "launcher/net/endpoint.h"

namespace launcher {
namespace {

EtcdJobState job_state_of(const Coordinator& coordinator,
                          LeaderElection::Time now) {
  const Coordinator::Past past = coordinator.past(now);
  EtcdJobState state;
  state.generation = past.generation;
  state.host_count = past.host_count;
  state.restarts = past.restarts;
  state.restart_ages = past.restart_ages;
  state.closed = coordinator.closed();
  return state;
}

int generation_in(const Message& message) {
  const auto* formed = std::get_if<WorldFormed>(&message);
  return formed != nullptr ? formed->world.generation : -1;
}

}  // namespace

EtcdAgent::EtcdAgent(Options options)
    : options_(std::move(options)),
      client_({.hello = options_.hello,
               .endpoint = options_.etcd,
               .option = "--rdzv-endpoint",
               .local_address = options_.config.local_address,
               .timeouts = options_.config.timeouts}),
      election_({.id = options_.hello.id,
                 .host = options_.hello.host,
                 .etcd = options_.etcd,
                 .timeouts = options_.config.timeouts,
                 .lease = lease_time(options_.config),
                 .ending = options_.config.terms.ending}) {}

EtcdAgent::Actions EtcdAgent::join(int store_port, Time now) {
  advance(now);
  perform(client_.join(store_port, now_));
  perform(election_.begin(now_));
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::report(const HostOutcome& outcome, Time now) {
  advance(now);
  perform(client_.report(outcome, now_));
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::leave(Time now) {
  advance(now);
  stop_taking_part();
  election_.leave();
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::end(Time now) {
  advance(now);
  stop_taking_part();
  perform(election_.end(now_));
  return take_actions();
}

void EtcdAgent::stop_taking_part() {
  if (std::exchange(has_left_, true)) {
    return;
  }
  // If this host coordinated, the other hosts go on with the next coordinator,
  // which finds that this host is missing.
  if (!coordinator_) {
    perform(client_.leave());
    followed_.reset();
  } else if (!coordinator_->closed()) {
    stop_coordinating();
  }
}

EtcdAgent::Actions EtcdAgent::on_answer(const EtcdAnswer& answer, Time now) {
  advance(now);
  perform(election_.on_answer(answer, now_));
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::on_time(Time now) {
  advance(now);
  if (!has_left_) {
    perform(client_.on_time(now_));
  }
  if (coordinator_) {
    perform(coordinator_->on_time(now_));
  }
  perform(election_.on_time(now_));
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::on_connected(const std::string& address,
                                           Time now) {
  advance(now);
  perform(client_.on_connected(address, now_));
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::on_closed(RendezvousClient::Loss loss,
                                        Time now,
                                        const std::string& how) {
  advance(now);
  perform(client_.on_closed(loss, now_, how));
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::on_message(const Message& message, Time now) {
  advance(now);
  election_.on_coordinator_answered();
  perform(client_.on_message(message, now_), /*is_from_coordinator=*/true);
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::on_host_message(Connection from,
                                              const Message& message,
                                              Time now) {
  advance(now);
  if (coordinator_) {
    perform(coordinator_->on_message(from, message, now_));
  } else {
    actions_.push_back(Coordinator::Drop{from});
  }
  return take_actions();
}

EtcdAgent::Actions EtcdAgent::on_host_closed(Connection connection,
                                             Time now,
                                             const std::string& how) {
  advance(now);
  held_.erase(connection);
  if (coordinator_) {
    perform(coordinator_->on_closed(connection, now_, how));
  }
  return take_actions();
}

std::optional<EtcdAgent::Time> EtcdAgent::next_deadline() const {
  std::optional<Time> next = election_.next_deadline();
  const auto consider = [&](std::optional<Time> time) {
    next = time ? std::min(next.value_or(*time), *time) : next;
  };
  if (!has_left_) {
    consider(client_.next_deadline());
  }
  if (coordinator_ && !coordinator_->is_done()) {
    consider(coordinator_->next_deadline());
  }
  return next;
}

void EtcdAgent::perform(const RendezvousClient::Actions& actions,
                        bool is_from_coordinator) {
  for (const RendezvousClient::Action& action : actions) {
    std::visit(Overloaded{[this](const RendezvousClient::Connect&) {
                            if (coordinator_) {
                              actions_.push_back(Connect{});
                            } else if (followed_) {
                              actions_.push_back(Connect{followed_->endpoint});
                            }
                          },
                          [this](const RendezvousClient::Disconnect&) {
                            actions_.push_back(Disconnect{});
                          },
                          [this](const Message& message) {
                            actions_.push_back(SendToCoordinator{message});
                          },
                          [&](const RendezvousAnswer& answer) {
                            on_client_answer(answer, is_from_coordinator);
                          }},
               action);
  }
}

void EtcdAgent::perform(const Coordinator::Actions& actions) {
  for (const Coordinator::Action& action : actions) {
    if (const auto* drop = std::get_if<Coordinator::Drop>(&action)) {
      held_.erase(drop->connection);
      actions_.push_back(*drop);
    } else {
      send_when_saved(std::get<Coordinator::Send>(action));
    }
  }
  // Last, because the election may stop this coordinator.
  perform(election_.save(job_state_of(*coordinator_, now_), now_));
}

void EtcdAgent::perform(const LeaderElection::Actions& actions) {
  for (const LeaderElection::Action& action : actions) {
    std::visit([this](const auto& known) { perform_one(known); }, action);
  }
}

/// A coordinator on another host that the client has lost starts an election,
/// and is no answer of this host's rendezvous.
void EtcdAgent::on_client_answer(const RendezvousAnswer& answer,
                                 bool is_from_coordinator) {
  const bool is_loss = std::holds_alternative<RendezvousLost>(answer) &&
                       !is_from_coordinator && !coordinator_;
  if (is_loss) {
    followed_.reset();
    perform(election_.on_lost(now_));
    return;
  }
  // Until a coordinator answers, the election tells what this host waits for.
  const bool is_note = std::holds_alternative<RendezvousNote>(answer);
  if (!is_note || is_from_coordinator) {
    actions_.push_back(answer);
  }
}

void EtcdAgent::perform_one(const LeaderElection::Follow& follow) {
  stop_coordinating();
  followed_ = follow.place;
  perform(client_.move_to(followed_->host + " (" +
                              text_of(followed_->endpoint) + ", by " +
                              options_.etcd + ")",
                          now_));
}

void EtcdAgent::perform_one(const LeaderElection::Lead& lead) {
  const EtcdConfig& config = options_.config;
  Coordinator::Past past{.generation = lead.state.generation,
                         .host_count = lead.state.host_count,
                         .restarts = lead.state.restarts,
                         .restart_ages = lead.state.restart_ages};
  if (client_.generation() >= 0) {
    past.lost = WorldBroken{WorldBroken::Change::vanished, lead.earlier};
  }
  followed_.reset();
  coordinator_.emplace(Coordinator::Options{.own_id = options_.hello.id,
                                            .terms = config.terms,
                                            .start_hosts = config.start_hosts,
                                            .token = config.token,
                                            .timeouts = config.timeouts,
                                            .past = past},
                       now_);
  perform(client_.move_to(options_.etcd, now_));
}

void EtcdAgent::perform_one(const LeaderElection::Fence&) {
  if (coordinator_) {
    perform(coordinator_->suspend(options_.etcd, now_));
  }
}

void EtcdAgent::perform_one(const LeaderElection::Resign&) {
  stop_coordinating();
  perform(client_.on_closed(RendezvousClient::Loss::other, now_));
}

void EtcdAgent::perform_one(const LeaderElection::Saved&) {
  for (const auto& [connection, send] : std::exchange(held_, {})) {
    send_when_saved(send);
  }
}

void EtcdAgent::perform_one(const RendezvousAnswer& answer) {
  if (!std::holds_alternative<RendezvousNote>(answer)) {
    stop_coordinating();
    actions_.push_back(Disconnect{});
    followed_.reset();
  }
  actions_.push_back(answer);
}

/// Sends a message, or holds it back until etcd has the generation of the world
/// that it announces.
void EtcdAgent::send_when_saved(const Coordinator::Send& send) {
  if (generation_in(send.message) > election_.saved().generation) {
    held_.insert_or_assign(send.to, send);
    actions_.push_back(Coordinator::Send{
        send.to, Noted{options_.etcd + " is still to note the next start"}});
    return;
  }
  held_.erase(send.to);  // this message replaces the held one
  actions_.push_back(send);
}

void EtcdAgent::stop_coordinating() {
  if (coordinator_) {
    actions_.push_back(Disconnect{});
  }
  coordinator_.reset();
  held_.clear();
  actions_.push_back(CloseListeners{});
}

}  // namespace launcher
