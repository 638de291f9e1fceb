#include "launcher/rendezvous/immediate.h"
#include "launcher/rendezvous/port.h"

namespace launcher {
namespace {

class LocalRendezvous : public ImmediateRendezvous {
 public:
  LocalRendezvous(std::string host, Handler handler)
      : ImmediateRendezvous(std::move(handler)), host_(std::move(host)) {}

 private:
  World form(const HostOffer& offer) override {
    World world;
    world.world_size = offer.worker_count;
    world.master = {host_, port_.reserve()};
    return world;
  }

  std::string host_;
  StorePort port_{0};
};

}  // namespace

std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& host,
                                                  Rendezvous::Handler handler) {
  return std::make_unique<LocalRendezvous>(host, std::move(handler));
}

}  // namespace launcher
