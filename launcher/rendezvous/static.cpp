#include <optional>
#include <utility>

#include "launcher/rendezvous/listener_probe.h"
#include "launcher/rendezvous/meeting_place.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {
namespace {

class StaticRendezvous : public Rendezvous {
 public:
  StaticRendezvous(EventLoop& loop,
                   const Meeting& meeting,
                   const std::string& host,
                   Handler handler)
      : loop_(loop),
        meeting_(meeting),
        handler_(std::move(handler)),
        met_(make_c10d_rendezvous(
            loop,
            meeting,
            host,
            [this](const RendezvousAnswer& answer) {
              is_decided_ = true;
              handler_(answer);
            },
            [this](const SocketAddress& at) { look_for_store(at); })) {}

  void join(const HostOffer& offer) override {
    offer_ = offer;
    present().join(offer);
  }
  void report(const HostOutcome& outcome) override {
    present().report(outcome);
  }
  void leave() override {
    is_decided_ = true;
    probe_.reset();
    present().leave();
  }

 private:
  Rendezvous& present() { return unmet_ ? *unmet_ : *met_; }

  /// A ddprun lets nobody listen there before all hosts have met.
  void look_for_store(const SocketAddress& refused) {
    const auto same = addresses_of(numeric_host(refused), meeting_.store->port);
    if (!is_decided_ && !same.empty()) {
      probe_.emplace(loop_, same.front(), [this] { go_on_unmet(); });
    }
  }

  void go_on_unmet() {
    if (is_decided_) {
      return;
    }
    leave();
    unmet_ = make_unmet_rendezvous(*meeting_.store,
                                   meeting_.wanted_rank.value_or(0),
                                   meeting_.terms.most_hosts,
                                   handler_);
    handler_(RendezvousNote{
        "nobody listens at " + text_of(meeting_.endpoint) +
        ", where the hosts of this job would meet, but at " +
        text_of(*meeting_.store) +
        " a store does: it seems not to be ddprun's. Going on without news of "
        "the other hosts: the first failure ends this one, and a host that "
        "vanishes is not noticed"});
    unmet_->join(offer_);
  }

  EventLoop& loop_;
  Meeting meeting_;
  Handler handler_;
  HostOffer offer_;
  bool is_decided_ = false;  // whether the hosts meet
  std::unique_ptr<Rendezvous> met_;
  std::unique_ptr<Rendezvous> unmet_;
  std::optional<ListenerProbe> probe_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_static_rendezvous(
    EventLoop& loop,
    const Meeting& meeting,
    const std::string& host,
    Rendezvous::Handler handler) {
  return std::make_unique<StaticRendezvous>(
      loop, meeting, host, std::move(handler));
}

}  // namespace launcher
