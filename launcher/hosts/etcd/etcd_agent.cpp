#include "launcher/hosts/etcd/etcd_agent.h"

#include <algorithm>
#include <utility>

#include "launcher/base/overloaded.h"
#include "launcher/net/endpoint.h"

namespace launcher {
namespace {

EtcdJobState record_of(const Coordinator& coordinator,
                       LeaderElection::Time now) {
  const Coordinator::Past past = coordinator.past(now);
  EtcdJobState record;
  record.generation = past.generation;
  record.host_count = past.host_count;
  record.restarts = past.restarts;
  record.restart_ages = past.restart_ages;
  record.closed = coordinator.closed();
  return record;
}

int generation_in(const Message& message) {
  const auto* formed = std::get_if<WorldFormed>(&message);
  return formed != nullptr ? formed->world.generation : -1;
}

}  // namespace

EtcdAgent::EtcdAgent(Options options)
    : options_(std::move(options)),
      member_({.hello = options_.hello,
               .endpoint = options_.etcd,
               .option = "--rdzv-endpoint",
               .local_address = options_.meeting.local_address,
               .patience = options_.meeting.patience}),
      election_({.id = options_.hello.id,
                 .host = options_.hello.host,
                 .etcd = options_.etcd,
                 .patience = options_.meeting.patience,
                 .lease = lease_time(options_.meeting),
                 .ending = options_.meeting.terms.ending}) {}

EtcdAgent::Actions EtcdAgent::join(int store_port, Time now) {
  return run(now, [this, store_port] {
    perform(member_.join(store_port, now_));
    perform(election_.begin(now_));
  });
}

EtcdAgent::Actions EtcdAgent::report(const HostOutcome& outcome, Time now) {
  return run(now, [this, &outcome] { perform(member_.report(outcome, now_)); });
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
  // The others go on: at the next coordinator, which is to miss this host.
  if (!coordinator_) {
    perform(member_.leave());
    place_.reset();
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
      perform(member_.on_time(now_));
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
      now, [this, &address] { perform(member_.on_connected(address, now_)); });
}

EtcdAgent::Actions EtcdAgent::on_closed(RendezvousClient::Loss loss, Time now) {
  return run(now, [this, loss] { perform(member_.on_closed(loss, now_)); });
}

EtcdAgent::Actions EtcdAgent::on_message(const Message& message, Time now) {
  return run(now, [this, &message] {
    election_.on_heard();
    perform(member_.on_message(message, now_), /*is_told=*/true);
  });
}

EtcdAgent::Actions EtcdAgent::on_guest_message(Client guest,
                                               const Message& message,
                                               Time now) {
  return run(now, [this, guest, &message] {
    if (coordinator_) {
      perform(coordinator_->on_message(guest, message, now_));
    } else {
      actions_.push_back(Coordinator::Drop{guest});
    }
  });
}

EtcdAgent::Actions EtcdAgent::on_guest_closed(Client guest, Time now) {
  return run(now, [this, guest] {
    held_.erase(guest);
    if (coordinator_) {
      perform(coordinator_->on_closed(guest, now_));
    }
  });
}

std::optional<EtcdAgent::Time> EtcdAgent::next_deadline() const {
  std::optional<Time> next = election_.next_deadline();
  const auto consider = [&](std::optional<Time> time) {
    next = time ? std::min(next.value_or(*time), *time) : next;
  };
  if (!has_left_) {
    consider(member_.next_deadline());
  }
  if (coordinator_ && !coordinator_->is_done()) {
    consider(coordinator_->next_deadline());
  }
  return next;
}

EtcdAgent::Actions EtcdAgent::run(Time now, const TaskQueue::Step& step) {
  now_ = std::max(now, now_);
  steps_.run(step);
  return std::exchange(actions_, {});
}

void EtcdAgent::perform(const RendezvousClient::Actions& actions,
                        bool is_told) {
  for (const RendezvousClient::Action& action : actions) {
    std::visit(
        Overloaded{
            [this](const RendezvousClient::Connect&) { connect(); },
            [this](const RendezvousClient::Disconnect&) {
              if (place_) {
                actions_.push_back(HangUp{});
              }
            },
            [this](const Message& message) { tell(message); },
            [&](const RendezvousAnswer& answer) { take(answer, is_told); }},
        action);
  }
}

void EtcdAgent::perform(const Coordinator::Actions& actions) {
  perform(election_.on_record(record_of(*coordinator_, now_), now_));
  for (const Coordinator::Action& action : actions) {
    if (const auto* drop = std::get_if<Coordinator::Drop>(&action)) {
      held_.erase(drop->connection);
      actions_.push_back(*drop);
    } else {
      send(std::get<Coordinator::Send>(action));
    }
  }
}

void EtcdAgent::perform(const LeaderElection::Actions& actions) {
  for (const LeaderElection::Action& action : actions) {
    std::visit([this](const auto& known) { act(known); }, action);
  }
}

/// What the member answers: of a coordinator's loss nobody else hears.
void EtcdAgent::take(const RendezvousAnswer& answer, bool is_told) {
  const bool is_loss =
      std::holds_alternative<RendezvousLost>(answer) && !is_told;
  if (is_loss) {
    place_.reset();
    steps_.run([this] { perform(election_.on_lost(now_)); });
    return;
  }
  const bool is_note = std::holds_alternative<RendezvousNote>(answer);
  if (!is_note || place_ || coordinator_) {
    actions_.push_back(answer);
  }
}

void EtcdAgent::act(const LeaderElection::Follow& follow) {
  stop_coordinating();
  place_ = follow.place;
  perform(member_.move_to(place_->host + " (" + text_of(place_->endpoint) +
                              ", by " + options_.etcd + ")",
                          now_));
}

void EtcdAgent::act(const LeaderElection::Host& host) {
  const Meeting& meeting = options_.meeting;
  Coordinator::Past past{.generation = host.record.generation,
                         .host_count = host.record.host_count,
                         .restarts = host.record.restarts,
                         .restart_ages = host.record.restart_ages};
  if (member_.generation() >= 0) {
    past.lost = WorldBroken{WorldBroken::Change::vanished, host.earlier};
  }
  if (place_.has_value()) {
    actions_.push_back(HangUp{});  // or its end would be the own one's
  }
  place_.reset();
  coordinator_.emplace(Coordinator::Options{.terms = meeting.terms,
                                            .start_hosts = meeting.start_hosts,
                                            .token = meeting.token,
                                            .patience = meeting.patience,
                                            .past = past},
                       now_);
  perform(member_.move_to(options_.etcd, now_));
}

void EtcdAgent::act(const LeaderElection::Fence&) {
  steps_.run([this] {
    if (coordinator_) {
      perform(coordinator_->suspend(options_.etcd, now_));
    }
  });
}

void EtcdAgent::act(const LeaderElection::Resign&) {
  stop_coordinating();
  perform(member_.on_closed(RendezvousClient::Loss::other, now_));
}

void EtcdAgent::act(const LeaderElection::Saved&) {
  for (const auto& [guest, message] : std::exchange(held_, {})) {
    send(message);
  }
}

void EtcdAgent::act(const RendezvousAnswer& answer) {
  if (!std::holds_alternative<RendezvousNote>(answer)) {
    stop_coordinating();
    if (place_) {
      actions_.push_back(HangUp{});
    }
    place_.reset();
  }
  actions_.push_back(answer);
}

void EtcdAgent::connect() {
  if (coordinator_) {
    steps_.run([this] { perform(member_.on_connected(address_, now_)); });
  } else if (place_) {
    actions_.push_back(Connect{place_->endpoint});
  }
}

void EtcdAgent::tell(const Message& message) {
  if (!coordinator_) {
    actions_.push_back(Tell{message});
    return;
  }
  steps_.run([this, message] {
    if (coordinator_) {
      perform(coordinator_->on_message(Coordinator::kOwn, message, now_));
    }
  });
}

void EtcdAgent::send(const Coordinator::Send& send) {
  if (generation_in(send.message) > election_.saved().generation) {
    held_.insert_or_assign(send.to, send);
    deliver(
        {send.to, Noted{options_.etcd + " is still to note the next start"}});
    return;
  }
  held_.erase(send.to);  // what was held is not so any more
  deliver(send);
}

void EtcdAgent::deliver(const Coordinator::Send& send) {
  if (send.to != Coordinator::kOwn) {
    actions_.push_back(send);
    return;
  }
  steps_.run([this, message = send.message] {
    if (coordinator_) {
      perform(member_.on_message(message, now_), /*is_told=*/true);
    }
  });
}

void EtcdAgent::stop_coordinating() {
  coordinator_.reset();
  held_.clear();
  actions_.push_back(CloseListeners{});
}

}  // namespace launcher
