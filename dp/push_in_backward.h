#pragma once

#include <memory>

#include "dp/parameter_server.h"

namespace dp {

/// While it lives, each gradient of a client's module sets out to its server as
/// soon as a backward pass has accumulated it, so that `push()` sends only what
/// is left. It changes no result: `push()` compares each `.grad` with what was
/// sent and sends it again where it has changed since (clipped, scaled, more
/// accumulated), which costs its way twice. When gradients add up over several
/// passes, let it live in the last of them.
///
/// Only what follows a `pull()` sets out. Sparse gradients travel with
/// `push()`. A copy of the gradients in memory is kept for it. Servers count a
/// worker's gradients among their `gradients_held` from the first on.
///
/// A pass that throws is forgotten by the next `pull()` or `finish()`, or made
/// good by another pass and `push()`. What a server reports meanwhile is thrown
/// by the next call of the client.
///
/// Lives on the thread of the client, and may outlive it.
///
/// Example:
/// @code
///   client.pull();
///   net->zero_grad();
///   loss(net, first_half).backward();
///   {
///     dp::PushInBackwardGuard in_backward(client);
///     loss(net, second_half).backward();
///   }
///   client.push();
/// @endcode
///
/// Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for
/// Distributed Deep Learning on GPU Clusters", USENIX ATC 2017.
class PushInBackwardGuard {
 public:
  explicit PushInBackwardGuard(ParameterClient& client);
  ~PushInBackwardGuard();
  PushInBackwardGuard(const PushInBackwardGuard&) = delete;
  PushInBackwardGuard& operator=(const PushInBackwardGuard&) = delete;

 private:
  std::shared_ptr<detail::EarlyPush> push_;
};

}  // namespace dp
