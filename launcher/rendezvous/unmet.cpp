#include "launcher/rendezvous/immediate.h"
#include "launcher/rendezvous/port.h"

namespace launcher {
namespace {

class UnmetRendezvous : public ImmediateRendezvous {
 public:
  UnmetRendezvous(Endpoint master,
                  int host_rank,
                  int host_count,
                  Handler handler)
      : ImmediateRendezvous(std::move(handler), host_count),
        master_(std::move(master)),
        host_rank_(host_rank),
        host_count_(host_count),
        port_(master_.port) {}

 private:
  World form(const HostOffer& offer) override {
    if (host_rank_ == 0) {
      port_.reserve();
    }
    World world;
    world.host_rank = host_rank_;
    world.host_count = host_count_;
    world.first_rank = host_rank_ * offer.worker_count;
    world.world_size = host_count_ * offer.worker_count;
    world.master = master_;
    return world;
  }

  Endpoint master_;
  int host_rank_;
  int host_count_;
  StorePort port_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_unmet_rendezvous(const Endpoint& master,
                                                  int host_rank,
                                                  int host_count,
                                                  Rendezvous::Handler handler) {
  return std::make_unique<UnmetRendezvous>(
      master, host_rank, host_count, std::move(handler));
}

}  // namespace launcher
