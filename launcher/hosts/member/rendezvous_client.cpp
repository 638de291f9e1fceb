#include "launcher/hosts/member/rendezvous_client.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/base/overloaded.h"
#include "launcher/base/text.h"

namespace launcher {

using Change = WorldBroken::Change;

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
  news_.start(now_, options_.timeouts.first_news);
  switch (phase_) {
    case Phase::none:
      give_up_ = now_ + options_.timeouts.join;
      return connect();
    case Phase::greeting:
    case Phase::connected:
      return send_state();
    case Phase::connecting:
    case Phase::resting:
    case Phase::over:
      break;
  }
  return {};
}

RendezvousClient::Actions RendezvousClient::report(const HostOutcome& outcome,
                                                   Time now) {
  advance(now);
  state_.outcome = outcome;
  if (std::holds_alternative<HostSucceeded>(outcome)) {
    news_.start(now_, options_.timeouts.first_news);
  }
  return has_connection() ? send_state() : Actions{};
}

RendezvousClient::Actions RendezvousClient::leave() {
  const bool had_connection = has_connection();
  phase_ = Phase::over;
  return (had_connection ? Actions{sending(Goodbye{})} : Actions{}) +
         Actions{Disconnect{}};
}

RendezvousClient::Actions RendezvousClient::on_connected(
    const std::string& address, Time now) {
  advance(now);
  if (phase_ != Phase::connecting) {
    return {};
  }
  phase_ = Phase::greeting;
  was_connected_ = true;
  if (!is_in_world()) {
    // In a world, connections without an answer do not end the silence.
    last_heard_ = now_;
  }
  state_.store.host =
      options_.local_address.empty() ? address : options_.local_address;
  return Actions{sending(options_.hello)} + send_state();
}

RendezvousClient::Actions RendezvousClient::on_closed(Loss loss,
                                                      Time now,
                                                      const std::string& how) {
  advance(now);
  if (!has_connection() && phase_ != Phase::connecting) {
    return {};
  }
  const bool had_answer = phase_ == Phase::connected;
  was_connected_ = phase_ != Phase::connecting;
  phase_ = Phase::resting;
  has_requested_news_ = false;
  next_step_ =
      now_ + (had_answer ? std::chrono::milliseconds(0) : backoff_.next());
  if (loss == Loss::stranger) {
    return fail(stranger_text());
  }
  if (had_answer || !has_answered_) {
    how_lost_ = how;
  }
  if (had_answer) {
    give_up_ = now_ + options_.timeouts.silence();
  }
  if (has_answered_ && loss == Loss::refused) {
    return fail(lost_text() +
                ", and nobody listens there any more; see the messages of the "
                "ddprun on that host");
  }
  return {};
}

RendezvousClient::Actions RendezvousClient::on_message(const Message& message,
                                                       Time now) {
  advance(now);
  if (!has_connection() || !is_of_coordinator(message)) {
    return {};
  }
  phase_ = Phase::connected;
  has_answered_ = true;
  last_heard_ = now_;
  backoff_.reset();
  return std::visit(
      Overloaded{
          [this](const WorldFormed& formed) { return enter_world(formed); },
          [this](const Broken& broken) {
            return is_in_world() && broken.generation == state_.generation
                       ? break_world({broken.why.change,
                                      on_one_line(broken.why.host),
                                      on_one_line(broken.why.how)})
                       : Actions{};
          },
          [this](const JobClosed& closed) {
            return finish(with_one_line_texts(closed));
          },
          [this](const RendezvousLost& refused) {
            return finish(RendezvousLost{"refused at " + endpoint_text() +
                                         ": " + on_one_line(refused.text)});
          },
          [this](const Noted& noted) {
            return has_requested_news_ ? print_news(noted.waits_for)
                                       : Actions{};
          },
          [](const auto&) { return Actions{}; }},
      message);
}

RendezvousClient::Actions RendezvousClient::on_time(Time now) {
  advance(now);
  if (phase_ == Phase::none || phase_ == Phase::over) {
    return {};
  }
  Actions actions = perform_due();
  return std::move(actions) + request_news();
}

RendezvousClient::Actions RendezvousClient::perform_due() {
  if (phase_ != Phase::connected && now_ >= give_up_) {
    return fail(timeout_text());
  }
  if (has_connection() && is_coordinator_silent()) {
    return Actions{Disconnect{}} +
           on_closed(
               Loss::cut,
               now_,
               "silent for " + patience_text(options_.timeouts.silence()));
  }
  if (has_connection()) {
    return now_ >= next_step_ ? send_state() : Actions{};
  }
  Actions broken =
      is_in_world() && is_coordinator_silent()
          ? break_world({Change::unreachable, options_.endpoint, how_lost_})
          : Actions{};
  if (now_ < next_step_) {
    return broken;
  }
  const bool is_stuck = phase_ == Phase::connecting;
  return std::move(broken) + (is_stuck ? Actions{Disconnect{}} : Actions{}) +
         connect();
}

/// Asks the coordinator for the reason of the wait, when a note is due. Its
/// answer is printed. Without a coordinator prints that none answers.
RendezvousClient::Actions RendezvousClient::request_news() {
  if (phase_ == Phase::over || has_requested_news_ || !news_.is_due(now_)) {
    return {};
  }
  if (phase_ != Phase::connected) {
    const std::string left = in_seconds(give_up_ - now_);
    return print_news(
        has_answered_
            ? "the connection is lost; gives up" + left
            : "no ddprun has answered there yet" +
                  (how_lost_.empty() ? "" : " (" + how_lost_ + ")") +
                  "; gives up" + left + " (--rdzv-conf join_timeout)");
  }
  has_requested_news_ = true;
  return send_state();
}

/// @param text  empty: there is nothing to print
RendezvousClient::Actions RendezvousClient::print_news(
    const std::string& text) {
  has_requested_news_ = false;
  news_.mark_printed(now_);
  return text.empty() ? Actions{}
                      : Actions{answer_of(
                            RendezvousNote{"waiting at " + endpoint_text() +
                                           ": " + on_one_line(text)})};
}

RendezvousClient::Actions RendezvousClient::fail(const std::string& text) {
  Actions broken =
      is_in_world()
          ? break_world({Change::unreachable, options_.endpoint, how_lost_})
          : Actions{};
  return std::move(broken) + finish(RendezvousLost{text});
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
  has_requested_news_ = false;
  news_.stop();
  return send_state() + Actions{answer_of(formed)};
}

RendezvousClient::Actions RendezvousClient::break_world(
    const WorldBroken& why) {
  is_broken_ = true;
  has_requested_news_ = false;
  news_.stop();
  return {answer_of(why)};
}

std::optional<RendezvousClient::Time> RendezvousClient::next_deadline() const {
  const Time silence = last_heard_ + options_.timeouts.silence();
  const Time news =
      has_requested_news_ ? Time::max() : news_.due().value_or(Time::max());
  switch (phase_) {
    case Phase::connected:
      return std::min({next_step_, silence, news});
    case Phase::greeting:
      return std::min({next_step_, silence, give_up_, news});
    case Phase::connecting:
    case Phase::resting:
      return std::min(
          {next_step_, give_up_, news, is_in_world() ? silence : give_up_});
    case Phase::none:
    case Phase::over:
      break;
  }
  return std::nullopt;
}

void RendezvousClient::advance(Time now) {
  now_ = std::max(now, now_);
}

RendezvousClient::Actions RendezvousClient::connect() {
  phase_ = Phase::connecting;
  next_step_ = now_ + options_.timeouts.keep_alive;
  return {Connect{}};
}

RendezvousClient::Actions RendezvousClient::send_state() {
  ++state_.number;
  next_step_ = now_ + options_.timeouts.keep_alive;
  return {Action(std::in_place_type<Message>, state_)};
}

bool RendezvousClient::has_connection() const {
  return phase_ == Phase::greeting || phase_ == Phase::connected;
}

bool RendezvousClient::is_in_world() const {
  return state_.generation >= 0 && !state_.joins && !is_broken_;
}

bool RendezvousClient::is_coordinator_silent() const {
  return now_ - last_heard_ >= options_.timeouts.silence();
}

std::string RendezvousClient::lost_text() const {
  return "the connection to " + options_.endpoint +
         ", where the hosts of the job meet, was lost" +
         (how_lost_.empty() ? "" : " (" + how_lost_ + ")");
}

std::string RendezvousClient::timeout_text() const {
  if (has_answered_) {
    return lost_text() + "; check the network and that host";
  }
  return was_connected_
             ? stranger_text()
             : "nobody answers at " + endpoint_text() +
                   (how_lost_.empty() ? "" : " (" + how_lost_ + ")") +
                   "; start ddprun on that host, and check the name, the port "
                   "and the firewall" +
                   (options_.hello.terms.ranks_are_fixed
                        ? " (--rdzv-conf meeting_port=0 where rank 0's workers "
                          "are not started by ddprun)"
                        : "");
}

std::string RendezvousClient::stranger_text() const {
  return "who listens at " + endpoint_text() +
         " does not speak as the ddprun of a job with hosts that meet; check "
         "that its port is in no other program's use, or give another one";
}

std::string RendezvousClient::endpoint_text() const {
  return options_.option + " " + options_.endpoint;
}

}  // namespace launcher
