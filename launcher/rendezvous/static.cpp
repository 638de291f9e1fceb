#include <optional>

#include "launcher/rendezvous/port.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {
namespace {

class StaticRendezvous : public Rendezvous {
 public:
  StaticRendezvous(Endpoint master, int host_rank)
      : master_(std::move(master)), host_rank_(host_rank) {}

  Endpoint next() override {
    if (host_rank_ == 0) {
      port_.reset();
      port_.emplace(master_.port);
    }
    return master_;
  }

 private:
  Endpoint master_;
  int host_rank_;
  std::optional<PortReservation> port_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_static_rendezvous(const Endpoint& master,
                                                   int host_rank) {
  return std::make_unique<StaticRendezvous>(master, host_rank);
}

}  // namespace launcher
