#include "launcher/hosts/member/rendezvous_client.h"

namespace launcher {

std::string RendezvousClient::lost_text() const {
  return "the connection to " + options_.endpoint +
         ", where the hosts of the job meet, was lost" +
         (how_lost_.empty() ? "" : " (" + how_lost_ + ")");
}

std::string RendezvousClient::give_up_text() const {
  if (was_heard_) {
    return lost_text() + "; check the network and that host";
  }
  return was_connected_
             ? stranger_text()
             : "nobody answers at " + place() +
                   "; start ddprun on that host, and check the name, the port "
                   "and the firewall" +
                   (options_.hello.terms.ranks_are_fixed
                        ? " (--rdzv-conf meeting_port=0 where rank 0's workers "
                          "are not started by ddprun)"
                        : "");
}

std::string RendezvousClient::stranger_text() const {
  return "who listens at " + place() +
         " does not speak as the ddprun of a job with hosts that meet; check "
         "that its port is in no other program's use, or give another one";
}

std::string RendezvousClient::place() const {
  return options_.option + " " + options_.endpoint;
}

}  // namespace launcher
