#include <optional>

#include "launcher/rendezvous/port.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {
namespace {

class LocalRendezvous : public Rendezvous {
 public:
  explicit LocalRendezvous(std::string host) : host_(std::move(host)) {}

  Endpoint next() override {
    // The new port is taken before the old one is let go: they differ.
    PortReservation fresh(0);
    port_.emplace(std::move(fresh));
    return {host_, port_->port()};
  }

 private:
  std::string host_;
  std::optional<PortReservation> port_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& host) {
  return std::make_unique<LocalRendezvous>(host);
}

}  // namespace launcher
