#include "launcher/hosts/member/rendezvous_client.h"

#include <iterator>
#include <utility>

#include "launcher/base/one_line.h"
#include "launcher/base/overloaded.h"
#include "launcher/base/patience_text.h"

namespace launcher {

using Change = WorldBroken::Change;

namespace {

RendezvousClient::Actions operator+(RendezvousClient::Actions first,
                                    RendezvousClient::Actions second) {
  first.insert(first.end(),
               std::make_move_iterator(second.begin()),
               std::make_move_iterator(second.end()));
  return first;
}

RendezvousClient::Action answer_of(const RendezvousAnswer& answer) {
  return RendezvousClient::Action(std::in_place_type<RendezvousAnswer>, answer);
}

/// A socket can be connected to itself.
bool is_of_coordinator(const Message& message) {
  return !std::holds_alternative<Hello>(message) &&
         !std::holds_alternative<HostState>(message) &&
         !std::holds_alternative<Goodbye>(message);
}

RendezvousClient::Action sending(const Message& message) {
  return RendezvousClient::Action(std::in_place_type<Message>, message);
}

JobClosed on_lines(JobClosed closed) {
  closed.text = on_one_line(closed.text);
  if (closed.first) {
    closed.first->host = on_one_line(closed.first->host);
  }
  return closed;
}

}  // namespace

RendezvousClient::RendezvousClient(Options options)
    : options_(std::move(options)) {}

RendezvousClient::Actions RendezvousClient::join(int store_port, Time now) {
  advance(now);
  state_.joins = true;
  state_.store.port = store_port;
  news_.start(now_, options_.patience.first_news);
  switch (link_) {
    case Link::none:
      give_up_ = now_ + options_.patience.join;
      return connect();
    case Link::greeting:
    case Link::connected:
      return tell();
    case Link::connecting:
    case Link::resting:
    case Link::over:
      break;
  }
  return {};
}

RendezvousClient::Actions RendezvousClient::report(const HostOutcome& outcome,
                                                   Time now) {
  advance(now);
  state_.outcome = outcome;
  if (std::holds_alternative<HostSucceeded>(outcome)) {
    news_.start(now_, options_.patience.first_news);
  }
  return is_linked() ? tell() : Actions{};
}

RendezvousClient::Actions RendezvousClient::leave() {
  const bool was_linked = is_linked();
  link_ = Link::over;
  return (was_linked ? Actions{sending(Goodbye{})} : Actions{}) +
         Actions{Disconnect{}};
}

RendezvousClient::Actions RendezvousClient::move_to(const std::string& endpoint,
                                                    Time now) {
  advance(now);
  const bool has_link = is_linked() || link_ == Link::connecting;
  Actions actions = has_link ? Actions{Disconnect{}} : Actions{};
  if (is_in_world()) {
    actions = std::move(actions) +
              break_world({Change::unreachable, options_.endpoint, how_lost_});
  }
  options_.endpoint = endpoint;
  was_connected_ = false;
  was_heard_ = false;
  has_asked_ = false;
  give_up_ = now_ + options_.patience.silence();
  backoff_.reset();
  return std::move(actions) + connect();
}

RendezvousClient::Actions RendezvousClient::on_connected(
    const std::string& address, Time now) {
  advance(now);
  if (link_ != Link::connecting) {
    return {};
  }
  link_ = Link::greeting;
  was_connected_ = true;
  if (!is_in_world()) {
    last_heard_ = now_;  // a world is not kept by connections alone
  }
  state_.store.host =
      options_.local_address.empty() ? address : options_.local_address;
  return Actions{sending(options_.hello)} + tell();
}

RendezvousClient::Actions RendezvousClient::on_closed(Loss loss,
                                                      Time now,
                                                      const std::string& how) {
  advance(now);
  if (!is_linked() && link_ != Link::connecting) {
    return {};
  }
  const bool had_been_there = link_ == Link::connected;
  link_ = Link::resting;
  has_asked_ = false;
  next_step_ = now_ + (had_been_there ? Backoff::Duration(0) : backoff_.next());
  if (loss == Loss::stranger) {
    return lose(stranger_text());
  }
  if (had_been_there) {
    how_lost_ = how;
    give_up_ = now_ + options_.patience.silence();
  }
  if (was_heard_ && loss == Loss::refused) {
    return lose(lost_text() +
                ", and nobody listens there any more; see the messages of the "
                "ddprun on that host");
  }
  return had_been_there && is_in_world() && loss != Loss::cut
             ? break_world({Change::unreachable, options_.endpoint, how})
             : Actions{};
}

RendezvousClient::Actions RendezvousClient::on_message(const Message& message,
                                                       Time now) {
  advance(now);
  if (!is_linked() || !is_of_coordinator(message)) {
    return {};
  }
  link_ = Link::connected;
  was_heard_ = true;
  last_heard_ = now_;
  backoff_.reset();
  return std::visit(
      Overloaded{
          [this](const WorldFormed& formed) { return enter(formed); },
          [this](const Broken& broken) {
            return is_in_world() && broken.generation == state_.generation
                       ? break_world({broken.why.change,
                                      on_one_line(broken.why.host),
                                      on_one_line(broken.why.how)})
                       : Actions{};
          },
          [this](const JobClosed& closed) { return end(on_lines(closed)); },
          [this](const RendezvousLost& refused) {
            return end(RendezvousLost{"refused at " + place() + ": " +
                                      on_one_line(refused.text)});
          },
          [this](const Noted& noted) { return take(noted); },
          [](const auto&) { return Actions{}; }},
      message);
}

RendezvousClient::Actions RendezvousClient::take(const Noted& noted) {
  const bool is_asked =
      noted.ends == state_.generation && noted.ends > state_.heard_end;
  if (is_asked) {
    state_.heard_end = noted.ends;
  }
  return (is_asked ? tell() : Actions{}) +
         (has_asked_ ? note(noted.waits_for) : Actions{}) +
         warn_of_address(noted.seen_address);
}

/// @param seen empty: there is nothing to warn of
RendezvousClient::Actions RendezvousClient::warn_of_address(
    const std::string& seen) {
  if (seen.empty() || was_warned_ || !options_.local_address.empty()) {
    return {};
  }
  was_warned_ = true;
  const std::string shown = on_one_line(seen);
  return {answer_of(RendezvousNote{
      "host " + options_.hello.host + " has rank 0, and its own address, " +
      state_.store.host + ", is MASTER_ADDR; its connection to " +
      options_.endpoint + " comes from " + shown +
      " there, as behind NAT. If the other hosts do not reach the first "
      "address, give this host one that they reach, as --local-addr=" +
      shown})};
}

RendezvousClient::Actions RendezvousClient::on_time(Time now) {
  advance(now);
  if (link_ == Link::none || link_ == Link::over) {
    return {};
  }
  Actions actions = act_on_time();
  return std::move(actions) + give_news();
}

RendezvousClient::Actions RendezvousClient::act_on_time() {
  if (link_ != Link::connected && now_ >= give_up_) {
    return lose(give_up_text());
  }
  if (is_linked() && is_coordinator_silent()) {
    return Actions{Disconnect{}} +
           on_closed(
               Loss::other,
               now_,
               "silent for " + patience_text(options_.patience.silence()));
  }
  if (is_linked()) {
    return now_ >= next_step_ ? tell() : Actions{};
  }
  Actions broken =
      is_in_world() && is_coordinator_silent()
          ? break_world({Change::unreachable, options_.endpoint, how_lost_})
          : Actions{};
  if (now_ < next_step_) {
    return broken;
  }
  const bool is_stuck = link_ == Link::connecting;
  return std::move(broken) + (is_stuck ? Actions{Disconnect{}} : Actions{}) +
         connect();
}

/// The coordinator is asked for the latest, and what it answers is told.
RendezvousClient::Actions RendezvousClient::give_news() {
  if (link_ == Link::over || has_asked_ || !news_.is_due(now_)) {
    return {};
  }
  if (link_ != Link::connected) {
    return note(wait_for_answer_text(was_heard_, give_up_ - now_));
  }
  has_asked_ = true;
  return tell();
}

/// @param text empty: there is nothing to say
RendezvousClient::Actions RendezvousClient::note(const std::string& text) {
  has_asked_ = false;
  news_.said(now_);
  return text.empty()
             ? Actions{}
             : Actions{answer_of(RendezvousNote{"waiting at " + place() + ": " +
                                                on_one_line(text)})};
}

RendezvousClient::Actions RendezvousClient::lose(const std::string& text) {
  Actions broken =
      is_in_world()
          ? break_world({Change::unreachable, options_.endpoint, how_lost_})
          : Actions{};
  return std::move(broken) + end(RendezvousLost{text});
}

RendezvousClient::Actions RendezvousClient::end(
    const RendezvousAnswer& answer) {
  link_ = Link::over;
  return {Disconnect{}, answer_of(answer)};
}

RendezvousClient::Actions RendezvousClient::enter(const WorldFormed& formed) {
  if (!state_.joins || formed.world.generation <= state_.generation) {
    return {};
  }
  state_.generation = formed.world.generation;
  state_.host_rank = formed.world.host_rank;
  state_.joins = false;
  state_.outcome.reset();
  is_broken_ = false;
  has_asked_ = false;
  news_.stop();
  return tell() + Actions{answer_of(formed)};
}

RendezvousClient::Actions RendezvousClient::break_world(
    const WorldBroken& why) {
  is_broken_ = true;
  has_asked_ = false;
  news_.stop();
  return {answer_of(why)};
}

}  // namespace launcher
