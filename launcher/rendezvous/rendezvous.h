#pragma once

#include <memory>

#include "launcher/cli/values.h"
#include "launcher/fd.h"

namespace launcher {

/// How the workers of all hosts come to know where rank 0's store listens. One
/// implementation a way; ddprun asks once before every start of the workers.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Host and port for the next start of the workers. What the last call
  /// reserved is given back.
  ///
  /// @throws LaunchError when the port is taken or the host name is unknown
  virtual Endpoint next() = 0;
};

/// One host: a free port for every start, so that nothing of an earlier one can
/// answer. See PortReservation for how the port stays ours.
std::unique_ptr<Rendezvous> make_local_rendezvous(const std::string& host);

/// The endpoint that the user names, the same for every start. On the host with
/// rank 0 the port is checked and reserved.
std::unique_ptr<Rendezvous> make_static_rendezvous(const Endpoint& master,
                                                   int host_rank);

}  // namespace launcher
