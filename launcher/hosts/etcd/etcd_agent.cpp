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
  return run(now, [this, store_port] {
    perform(client_.join(store_port, now_));
    perform(election_.begin(now_));
  });
}

EtcdAgent::Actions EtcdAgent::report(const HostOutcome& outcome, Time now) {
  return run(now, [this, &outcome] { perform(client_.report(outcome, now_)); });
}

EtcdAgent::Actions EtcdAgent::leave(Time now) {
  return run(now, [this] {
    stop_taking_part();
    election_.leave();
  });
}

EtcdAgent::Actions EtcdAgent::end(Time now) {
  return run(now, [this] {
    stop_taking_part();
    perform(election_.end(now_));
  });
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
  return run(now,
             [this, &answer] { perform(election_.on_answer(answer, now_)); });
}

EtcdAgent::Actions EtcdAgent::on_time(Time now) {
  return run(now, [this] {
    if (!has_left_) {
      perform(client_.on_time(now_));
    }
    if (coordinator_) {
      perform(coordinator_->on_time(now_));
    }
    perform(election_.on_time(now_));
  });
}

EtcdAgent::Actions EtcdAgent::on_connected(const std::string& address,
                                           Time now) {
  return run(
      now, [this, &address] { perform(client_.on_connected(address, now_)); });
}

EtcdAgent::Actions EtcdAgent::on_closed(RendezvousClient::Loss loss, Time now) {
  return run(now, [this, loss] { perform(client_.on_closed(loss, now_)); });
}

EtcdAgent::Actions EtcdAgent::on_message(const Message& message, Time now) {
  return run(now, [this, &message] {
    election_.on_coordinator_answered();
    perform(client_.on_message(message, now_), /*is_from_coordinator=*/true);
  });
}

EtcdAgent::Actions EtcdAgent::on_host_message(Connection from,
                                              const Message& message,
                                              Time now) {
  return run(now, [this, from, &message] {
    if (coordinator_) {
      perform(coordinator_->on_message(from, message, now_));
    } else {
      actions_.push_back(Coordinator::Drop{from});
    }
  });
}

EtcdAgent::Actions EtcdAgent::on_host_closed(Connection connection, Time now) {
  return run(now, [this, connection] {
    held_.erase(connection);
    if (coordinator_) {
      perform(coordinator_->on_closed(connection, now_));
    }
  });
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

EtcdAgent::Actions EtcdAgent::run(Time now, const TaskQueue::Task& task) {
  now_ = std::max(now, now_);
  tasks_.run(task);
  return std::exchange(actions_, {});
}

void EtcdAgent::perform(const RendezvousClient::Actions& actions,
                        bool is_from_coordinator) {
  for (const RendezvousClient::Action& action : actions) {
    std::visit(
        Overloaded{
            [this](const RendezvousClient::Connect&) { connect(); },
            [this](const RendezvousClient::Disconnect&) {
              if (followed_) {
                actions_.push_back(Disconnect{});
              }
            },
            [this](const Message& message) { send_to_coordinator(message); },
            [&](const RendezvousAnswer& answer) {
              on_client_answer(answer, is_from_coordinator);
            }},
        action);
  }
}

void EtcdAgent::perform(const Coordinator::Actions& actions) {
  perform(election_.save(job_state_of(*coordinator_, now_), now_));
  for (const Coordinator::Action& action : actions) {
    if (const auto* drop = std::get_if<Coordinator::Drop>(&action)) {
      held_.erase(drop->connection);
      actions_.push_back(*drop);
    } else {
      send_when_saved(std::get<Coordinator::Send>(action));
    }
  }
}

void EtcdAgent::perform(const LeaderElection::Actions& actions) {
  for (const LeaderElection::Action& action : actions) {
    std::visit([this](const auto& known) { perform_one(known); }, action);
  }
}

/// A coordinator that the client has lost starts an election, and is no answer
/// of this host's rendezvous.
void EtcdAgent::on_client_answer(const RendezvousAnswer& answer,
                                 bool is_from_coordinator) {
  const bool is_loss =
      std::holds_alternative<RendezvousLost>(answer) && !is_from_coordinator;
  if (is_loss) {
    followed_.reset();
    tasks_.run([this] { perform(election_.on_lost(now_)); });
    return;
  }
  const bool is_note = std::holds_alternative<RendezvousNote>(answer);
  if (!is_note || followed_ || coordinator_) {
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
  if (followed_.has_value()) {
    // Otherwise the end of this connection would count for the own coordinator.
    actions_.push_back(Disconnect{});
  }
  followed_.reset();
  coordinator_.emplace(Coordinator::Options{.terms = config.terms,
                                            .start_hosts = config.start_hosts,
                                            .token = config.token,
                                            .timeouts = config.timeouts,
                                            .past = past},
                       now_);
  perform(client_.move_to(options_.etcd, now_));
}

void EtcdAgent::perform_one(const LeaderElection::Fence&) {
  tasks_.run([this] {
    if (coordinator_) {
      perform(coordinator_->suspend(options_.etcd, now_));
    }
  });
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
    if (followed_) {
      actions_.push_back(Disconnect{});
    }
    followed_.reset();
  }
  actions_.push_back(answer);
}

void EtcdAgent::connect() {
  if (coordinator_) {
    tasks_.run([this] { perform(client_.on_connected(address_, now_)); });
  } else if (followed_) {
    actions_.push_back(Connect{followed_->endpoint});
  }
}

void EtcdAgent::send_to_coordinator(const Message& message) {
  if (!coordinator_) {
    actions_.push_back(SendToCoordinator{message});
    return;
  }
  tasks_.run([this, message] {
    if (coordinator_) {
      perform(coordinator_->on_message(Coordinator::kOwn, message, now_));
    }
  });
}

/// Sends a message, or holds it back until etcd has the generation of the world
/// that it announces.
void EtcdAgent::send_when_saved(const Coordinator::Send& send) {
  if (generation_in(send.message) > election_.saved().generation) {
    held_.insert_or_assign(send.to, send);
    deliver(
        {send.to, Noted{options_.etcd + " is still to note the next start"}});
    return;
  }
  held_.erase(send.to);  // this message replaces the held one
  deliver(send);
}

void EtcdAgent::deliver(const Coordinator::Send& send) {
  if (send.to != Coordinator::kOwn) {
    actions_.push_back(send);
    return;
  }
  tasks_.run([this, message = send.message] {
    if (coordinator_) {
      perform(client_.on_message(message, now_), /*is_from_coordinator=*/true);
    }
  });
}

void EtcdAgent::stop_coordinating() {
  coordinator_.reset();
  held_.clear();
  actions_.push_back(CloseListeners{});
}

}  // namespace launcher
