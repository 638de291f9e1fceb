#include "launcher/hosts/member/rendezvous_client.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/base/text.h"

namespace launcher {

namespace {

std::string unique_id() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

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

/// A host's own message may come back, because a socket can be connected to
/// itself.
bool is_of_coordinator(const Message& message) {
  return !std::holds_alternative<Hello>(message) &&
         !std::holds_alternative<HostState>(message) &&
         !std::holds_alternative<Goodbye>(message);
}

RendezvousClient::Action sending(const Message& message) {
  return RendezvousClient::Action(std::in_place_type<Message>, message);
}

/// Puts each text of the message on one line.
JobClosed with_one_line_texts(JobClosed closed) {
  closed.text = on_one_line(closed.text);
  if (closed.first) {
    closed.first->host = on_one_line(closed.first->host);
  }
  return closed;
}

}  // namespace

Hello hello_of(const CoordinatedConfig& config,
               const std::string& host,
               const HostOffer& offer) {
  const Hello hello{.token = config.token,
                    .terms = config.terms,
                    .id = unique_id(),
                    .host = host,
                    .role = config.role,
                    .worker_count = offer.worker_count,
                    .keep_alive = config.timeouts.keep_alive,
                    .wanted_rank = config.wanted_rank};
  const auto message = decode(encode(hello));
  const auto* copy = message ? std::get_if<Hello>(&*message) : nullptr;
  if (copy == nullptr || copy->token != hello.token ||
      copy->terms.run_id != hello.terms.run_id) {
    throw LaunchError(kExitFailure,
                      "expected at most 256 bytes in each of --rdzv-id, --role "
                      "and the host's name, and 1024 in DDPRUN_TOKEN, all in "
                      "UTF-8");
  }
  return hello;
}

RendezvousClient::RendezvousClient(Options options)
    : options_(std::move(options)) {}

RendezvousClient::Actions RendezvousClient::join(int store_port, Time now) {
  advance(now);
  state_.joins = true;
  state_.store.port = store_port;
  Actions actions;
  if (phase_ == Phase::none) {
    give_up_ = now_ + options_.timeouts.join;
    actions = connect();
  } else if (phase_ == Phase::connected) {
    actions = send_state();
  }
  begin_to_wait();
  return actions;
}

RendezvousClient::Actions RendezvousClient::report(const HostOutcome& outcome,
                                                   Time now) {
  advance(now);
  state_.outcome = outcome;
  Actions actions = phase_ == Phase::connected ? send_state() : Actions{};
  if (std::holds_alternative<HostSucceeded>(outcome)) {
    begin_to_wait();
  }
  return actions;
}

RendezvousClient::Actions RendezvousClient::leave() {
  const bool was_connected = phase_ == Phase::connected;
  phase_ = Phase::over;
  return (was_connected ? Actions{sending(Goodbye{})} : Actions{}) +
         Actions{Disconnect{}};
}

RendezvousClient::Actions RendezvousClient::on_connected(
    const std::string& address, Time now) {
  advance(now);
  if (phase_ != Phase::connecting) {
    return {};
  }
  phase_ = Phase::connected;
  state_.store.host =
      options_.local_address.empty() ? address : options_.local_address;
  return Actions{sending(options_.hello)} + send_state();
}

RendezvousClient::Actions RendezvousClient::on_closed(Time now,
                                                      const std::string& how,
                                                      bool is_gone) {
  advance(now);
  if (phase_ != Phase::connecting && phase_ != Phase::connected) {
    return {};
  }
  phase_ = Phase::connecting;
  next_step_ = now_ + backoff_.next();
  how_lost_ = how;
  return is_gone ? finish(RendezvousLost{lost_text()}) : Actions{};
}

RendezvousClient::Actions RendezvousClient::on_message(const Message& message,
                                                       Time now) {
  advance(now);
  if (phase_ != Phase::connected || !is_of_coordinator(message)) {
    return {};
  }
  if (!std::exchange(has_answered_, true)) {
    begin_to_wait();  // for other hosts from now on
  }
  is_answered_ = true;
  give_up_ = now_ + options_.timeouts.silence();
  backoff_.reset();
  return std::visit(
      Overloaded{
          [this](const WorldFormed& formed) { return enter_world(formed); },
          [this](const Broken& broken) { return break_world(broken); },
          [this](const JobClosed& closed) {
            return finish(with_one_line_texts(closed));
          },
          [this](const RendezvousLost& refused) {
            return finish(RendezvousLost{"refused at " + endpoint_text() +
                                         ": " + on_one_line(refused.text)});
          },
          [this](const Noted& noted) { return print_news(noted.waits_for); },
          [](const auto&) { return Actions{}; }},
      message);
}

RendezvousClient::Actions RendezvousClient::on_time(Time now) {
  advance(now);
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return {};
  }
  if (now_ >= give_up_) {
    return finish(RendezvousLost{lost_text()});
  }
  Actions news =
      has_answered_
          ? Actions{}
          : print_news("no ddprun has answered there yet" +
                       (how_lost_.empty() ? "" : " (" + how_lost_ + ")") +
                       "; gives up in " +
                       patience_text(std::chrono::ceil<std::chrono::seconds>(
                           give_up_ - now_)) +
                       " (--rdzv-conf join_timeout)");
  if (now_ < next_step_) {
    return news;
  }
  // After a success the end of the job may be on its way on this connection,
  // and the coordinator gone once it has sent it.
  const bool has_succeeded =
      state_.outcome && std::holds_alternative<HostSucceeded>(*state_.outcome);
  if (phase_ == Phase::connected && (is_answered_ || has_succeeded)) {
    return std::move(news) + send_state();
  }
  if (phase_ == Phase::connected) {
    how_lost_ = "no answer for " + patience_text(options_.timeouts.keep_alive);
  }
  return std::move(news) + connect();
}

/// Prints the reason of the wait if it is time for that.
///
/// @param text  empty: there is nothing to print
RendezvousClient::Actions RendezvousClient::print_news(
    const std::string& text) {
  if (text.empty() || !next_news_ || now_ < *next_news_) {
    return {};
  }
  next_news_.reset();
  return {answer_of(RendezvousNote{"waiting at " + endpoint_text() + ": " +
                                   on_one_line(text)})};
}

RendezvousClient::Actions RendezvousClient::finish(
    const RendezvousAnswer& answer) {
  phase_ = Phase::over;
  return {Disconnect{}, answer_of(answer)};
}

RendezvousClient::Actions RendezvousClient::enter_world(
    const WorldFormed& formed) {
  if (!state_.joins || formed.world.generation <= state_.generation) {
    return {};
  }
  state_.generation = formed.world.generation;
  state_.host_rank = formed.world.host_rank;
  state_.joins = false;
  state_.outcome.reset();
  is_broken_ = false;
  next_news_.reset();
  return send_state() + Actions{answer_of(formed)};
}

RendezvousClient::Actions RendezvousClient::break_world(const Broken& broken) {
  if (state_.joins || is_broken_ || broken.generation != state_.generation) {
    return {};
  }
  is_broken_ = true;
  next_news_.reset();
  return {answer_of(WorldBroken{broken.why.change,
                                on_one_line(broken.why.host),
                                on_one_line(broken.why.how)})};
}

std::optional<RendezvousClient::Time> RendezvousClient::next_deadline() const {
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return std::nullopt;
  }
  const Time step = std::min(next_step_, give_up_);
  return has_answered_ ? step : std::min(step, next_news_.value_or(step));
}

void RendezvousClient::advance(Time now) {
  now_ = std::max(now, now_);
}

/// Sends the state also when news is due: the answer has the reason of the
/// wait.
void RendezvousClient::begin_to_wait() {
  next_news_ = now_ + options_.timeouts.until_news;
  next_step_ = std::min(next_step_, *next_news_);
}

RendezvousClient::Actions RendezvousClient::connect() {
  phase_ = Phase::connecting;
  next_step_ = now_ + options_.timeouts.keep_alive;
  return {Connect{}};
}

RendezvousClient::Actions RendezvousClient::send_state() {
  ++state_.number;
  is_answered_ = false;
  next_step_ = now_ + options_.timeouts.keep_alive;
  return {Action(std::in_place_type<Message>, state_)};
}

std::string RendezvousClient::lost_text() const {
  const std::string how = how_lost_.empty() ? "" : " (" + how_lost_ + ")";
  return has_answered_
             ? "the connection to " + options_.endpoint +
                   ", where the hosts of the job meet, was lost" + how +
                   "; check the network, and see the messages of the ddprun on "
                   "that host"
             : "no ddprun answers at " + endpoint_text() + how +
                   "; start ddprun on that host, and check the name, the port "
                   "and the firewall" +
                   (options_.hello.terms.ranks_are_fixed
                        ? " (--rdzv-conf meeting_port=0 where rank 0's workers "
                          "are not started by ddprun)"
                        : "");
}

std::string RendezvousClient::endpoint_text() const {
  return options_.option + " " + options_.endpoint;
}

}  // namespace launcher
