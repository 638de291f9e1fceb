#include "launcher/rendezvous/immediate.h"

#include "launcher/error.h"

namespace launcher {

ImmediateRendezvous::ImmediateRendezvous(Handler handler)
    : handler_(std::move(handler)) {}

void ImmediateRendezvous::join(const HostOffer& offer) {
  try {
    World world = form(offer);
    world.generation = generation_++;
    world.restarts = restarts_;
    handler_(WorldFormed{world});
  } catch (const LaunchError& error) {
    handler_(RendezvousLost{error.what()});
  }
}

void ImmediateRendezvous::report(const HostOutcome& outcome) {
  if (std::holds_alternative<HostSucceeded>(outcome)) {
    handler_(JobClosed{0});
  } else {
    ++restarts_;
  }
}

}  // namespace launcher
