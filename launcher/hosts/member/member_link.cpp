#include <algorithm>
#include <utility>

#include "launcher/hosts/member/rendezvous_client.h"

// A member's times, and what it says of itself.
namespace launcher {

std::optional<RendezvousClient::Time> RendezvousClient::next_deadline() const {
  const Time silence = last_heard_ + options_.patience.silence();
  const Time news =
      has_asked_ ? Time::max() : news_.due().value_or(Time::max());
  switch (link_) {
    case Link::connected:
      return std::min({next_step_, silence, news});
    case Link::greeting:
      return std::min({next_step_, silence, give_up_, news});
    case Link::connecting:
    case Link::resting:
      return std::min(
          {next_step_, give_up_, news, is_in_world() ? silence : give_up_});
    case Link::none:
    case Link::over:
      break;
  }
  return std::nullopt;
}

void RendezvousClient::advance(Time now) {
  now = std::max(now, now_);
  const auto passed = now - now_;
  if (passed > 2 * options_.patience.keep_alive) {
    // It was this process that slept; what was sent to it is still to be read.
    last_heard_ += passed;
    give_up_ += passed;
  }
  now_ = now;
}

RendezvousClient::Actions RendezvousClient::connect() {
  link_ = Link::connecting;
  next_step_ = now_ + options_.patience.keep_alive;
  return {Connect{}};
}

RendezvousClient::Actions RendezvousClient::tell() {
  ++state_.number;
  next_step_ = now_ + options_.patience.keep_alive;
  return {Action(std::in_place_type<Message>, state_)};
}

bool RendezvousClient::is_linked() const {
  return link_ == Link::greeting || link_ == Link::connected;
}

bool RendezvousClient::is_coordinator_silent() const {
  return now_ - last_heard_ >= options_.patience.silence();
}

bool RendezvousClient::is_in_world() const {
  return state_.generation >= 0 && !state_.joins && !is_broken_;
}

}  // namespace launcher
