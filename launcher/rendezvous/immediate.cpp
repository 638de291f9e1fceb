#include "launcher/rendezvous/immediate.h"

#include "launcher/error.h"

namespace launcher {

ImmediateRendezvous::ImmediateRendezvous(Handler handler, int host_count)
    : handler_(std::move(handler)), host_count_(host_count) {}

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
  const auto* failed = std::get_if<HostFailed>(&outcome);
  if (failed == nullptr) {
    handler_(JobClosed{0});
  } else if (host_count_ > 1) {
    handler_(JobClosed{failed->status.shell_code()});
  } else {
    ++restarts_;
  }
}

}  // namespace launcher
