#include <optional>
#include <utility>

#include "launcher/base/error.h"
#include "launcher/hosts/make_rendezvous.h"
#include "launcher/hosts/member/name_lookup.h"
#include "launcher/net/address.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

class UncoordinatedRendezvous : public Rendezvous {
 public:
  UncoordinatedRendezvous(UncoordinatedConfig config,
                          Handler handler,
                          EventLoop* loop,
                          NameService ask)
      : config_(std::move(config)),
        handler_(std::move(handler)),
        loop_(loop),
        ask_(std::move(ask)),
        is_resolved_(loop == nullptr || is_address(config_.master.host)),
        port_(config_.master.port) {}

  void join(const HostOffer& offer) override {
    if (is_resolved_) {
      form_world(offer);
      return;
    }
    try {
      lookup_.emplace(*loop_,
                      NameQuestion{.host = config_.master.host,
                                   .option = "--master-addr",
                                   .is_awaited = config_.host_count > 1,
                                   .timeouts = config_.timeouts,
                                   .ask = ask_},
                      handler_,
                      [this, offer](const std::vector<std::string>&) {
                        lookup_.reset();
                        is_resolved_ = true;
                        form_world(offer);
                      });
    } catch (const LaunchError& error) {
      handler_(RendezvousLost{error.what()});
    }
  }

  void report(const HostOutcome& outcome) override {
    const auto* failed = std::get_if<HostFailed>(&outcome);
    if (failed == nullptr) {
      handler_(JobClosed{0});
    } else if (config_.host_count > 1) {
      // The other hosts cannot learn of a restart.
      handler_(JobClosed{failed->status.shell_code()});
    } else {
      ++restarts_;
    }
  }

  void leave() override { lookup_.reset(); }
  bool is_over() const override { return true; }

 private:
  void form_world(const HostOffer& offer) {
    World world{.generation = generation_, .restarts = restarts_};
    world.host_rank = config_.host_rank;
    world.host_count = config_.host_count;
    world.first_rank = config_.host_rank * offer.worker_count;
    world.world_size = config_.host_count * offer.worker_count;
    world.master = config_.master;
    try {
      world.master.port =
          config_.host_rank == 0 ? port_.reserve() : config_.master.port;
    } catch (const LaunchError& error) {
      handler_(RendezvousLost{error.what()});
      return;
    }
    ++generation_;
    handler_(WorldFormed{world});
  }

  UncoordinatedConfig config_;
  Handler handler_;
  EventLoop* loop_;
  NameService ask_;
  bool is_resolved_;
  std::optional<NameLookup> lookup_;
  StorePort port_;
  int generation_ = 0;
  int restarts_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_uncoordinated_rendezvous(
    const UncoordinatedConfig& config,
    Rendezvous::Handler handler,
    EventLoop* loop,
    NameService ask) {
  return std::make_unique<UncoordinatedRendezvous>(
      config, std::move(handler), loop, std::move(ask));
}

}  // namespace launcher
