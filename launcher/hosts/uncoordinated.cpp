#include <utility>

#include "launcher/base/error.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/net/port.h"

namespace launcher {
namespace {

class UncoordinatedRendezvous : public Rendezvous {
 public:
  UncoordinatedRendezvous(Endpoint master,
                          int host_rank,
                          int host_count,
                          Handler handler)
      : master_(std::move(master)),
        host_rank_(host_rank),
        host_count_(host_count),
        handler_(std::move(handler)),
        port_(master_.port) {}

  void join(const HostOffer& offer) override {
    World world{.generation = generation_, .restarts = restarts_};
    world.host_rank = host_rank_;
    world.host_count = host_count_;
    world.first_rank = host_rank_ * offer.worker_count;
    world.world_size = host_count_ * offer.worker_count;
    world.master = master_;
    try {
      world.master.port = host_rank_ == 0 ? port_.reserve() : master_.port;
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
    } else if (host_count_ > 1) {
      // The others cannot be told of a restart.
      handler_(JobClosed{failed->status.shell_code()});
    } else {
      ++restarts_;
    }
  }

  void leave() override {}
  void end() override {}
  bool is_over() const override { return true; }

 private:
  Endpoint master_;
  int host_rank_;
  int host_count_;
  Handler handler_;
  StorePort port_;
  int generation_ = 0;
  int restarts_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_uncoordinated_rendezvous(
    const Endpoint& master,
    int host_rank,
    int host_count,
    Rendezvous::Handler handler) {
  return std::make_unique<UncoordinatedRendezvous>(
      master, host_rank, host_count, std::move(handler));
}

}  // namespace launcher
