#include <optional>
#include <system_error>
#include <utility>

#include "launcher/process/background_call.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {
namespace {

class ResolvingRendezvous : public Rendezvous {
 public:
  ResolvingRendezvous(EventLoop& loop,
                      std::function<std::string()> find_error,
                      std::unique_ptr<Rendezvous> next,
                      Handler handler)
      : loop_(loop),
        find_error_(std::move(find_error)),
        next_(std::move(next)),
        handler_(std::move(handler)) {}

  void join(const HostOffer& offer) override {
    if (is_resolved_) {
      next_->join(offer);
      return;
    }
    try {
      lookup_.emplace(loop_,
                      find_error_,
                      [this, offer](const std::optional<std::string>& error) {
                        lookup_.reset();
                        take(error.value_or(""), offer);
                      });
    } catch (const std::system_error& error) {
      handler_(RendezvousLost{std::string(error.what()) + "; check ulimit -a"});
    }
  }
  void report(const HostOutcome& outcome) override { next_->report(outcome); }
  void leave() override {
    lookup_.reset();
    next_->leave();
  }

 private:
  void take(const std::string& error, const HostOffer& offer) {
    if (!error.empty()) {
      handler_(RendezvousLost{error});
      return;
    }
    is_resolved_ = true;
    next_->join(offer);
  }

  EventLoop& loop_;
  std::function<std::string()> find_error_;
  std::unique_ptr<Rendezvous> next_;
  Handler handler_;
  std::optional<BackgroundCall> lookup_;
  bool is_resolved_ = false;
};

}  // namespace

std::unique_ptr<Rendezvous> make_resolving_rendezvous(
    EventLoop& loop,
    std::function<std::string()> find_error,
    std::unique_ptr<Rendezvous> next,
    Rendezvous::Handler handler) {
  return std::make_unique<ResolvingRendezvous>(
      loop, std::move(find_error), std::move(next), std::move(handler));
}

}  // namespace launcher
