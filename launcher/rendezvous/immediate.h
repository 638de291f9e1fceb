#pragma once

#include "launcher/rendezvous/rendezvous.h"

namespace launcher {

/// A rendezvous that asks nobody: it knows every answer at once.
class ImmediateRendezvous : public Rendezvous {
 public:
  void join(const HostOffer& offer) final;
  void report(const HostOutcome& outcome) final;
  void leave() final {}

 protected:
  /// @param host_count above 1, where the others cannot be told of a restart,
  ///   a failure closes the job
  explicit ImmediateRendezvous(Handler handler, int host_count = 1);

  /// This host's place among the hosts, and the endpoint. Generation and
  /// restarts are counted here.
  ///
  /// @throws LaunchError when there can be no world
  virtual World form(const HostOffer& offer) = 0;

 private:
  Handler handler_;
  int host_count_;
  int generation_ = 0;
  int restarts_ = 0;
};

}  // namespace launcher
