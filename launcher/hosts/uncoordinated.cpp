#include <utility>

#include "launcher/base/error.h"
#include "launcher/hosts/make_rendezvous.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

class UncoordinatedRendezvous : public Rendezvous {
 public:
  UncoordinatedRendezvous(UncoordinatedConfig config, Handler handler)
      : config_(std::move(config)),
        handler_(std::move(handler)),
        port_(config_.master.port) {}

  void join(const HostOffer& offer) override {
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

  void leave() override {}
  bool is_over() const override { return true; }

 private:
  UncoordinatedConfig config_;
  Handler handler_;
  StorePort port_;
  int generation_ = 0;
  int restarts_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_uncoordinated_rendezvous(
    const UncoordinatedConfig& config, Rendezvous::Handler handler) {
  return std::make_unique<UncoordinatedRendezvous>(config, std::move(handler));
}

}  // namespace launcher
