#include "launcher/etcd/succession.h"
#include "launcher/patience_text.h"

// What is said to people.
namespace launcher {

std::string Succession::late_text() const {
  const std::string seconds = patience_text(options_.patience.join);
  if (!trouble_.empty()) {
    return options_.etcd + " has not answered for " + seconds + ": " + trouble_;
  }
  return followed_host_.empty()
             ? options_.etcd + " has not answered in " + seconds +
                   "; check that etcd runs there, --rdzv-endpoint and the "
                   "firewall, or give it more time (--rdzv-conf join_timeout)"
             : "host " + followed_host_ + ", which coordinates this job by " +
                   options_.etcd + ", cannot be reached, and for " + seconds +
                   " no other one has taken over; check the network between "
                   "the hosts, or give --local-addr";
}

std::string Succession::news_text() const {
  const std::string end =
      "; gives up" +
      in_seconds((unsaved_since_ ? *unsaved_since_ + options_.patience.join
                                 : give_up_) -
                 now_) +
      " (--rdzv-conf join_timeout)";
  if (phase_ == Phase::hosting) {
    return trouble_.empty()
               ? ""
               : options_.etcd + " does not answer (" + trouble_ + "); " +
                     (unsaved_since_
                          ? "a change of the job's hosts waits for it" + end
                      : is_fenced_
                          ? "the workers stop until it does, since another "
                            "host may take the job over meanwhile"
                          : "the job goes on for" +
                                in_seconds(fence_time() - now_).substr(3) +
                                " (--rdzv-conf lease_timeout), but its hosts "
                                "cannot change until it does");
  }
  const std::string& host = followed_host_;
  return "waiting for " +
         (!trouble_.empty() ? options_.etcd + " (" + trouble_ + ")"
          : host.empty()    ? options_.etcd
                         : "host " + host + ", which coordinates this job by " +
                               options_.etcd) +
         end;
}

}  // namespace launcher
