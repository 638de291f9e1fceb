#include "launcher/etcd/succession.h"
#include "launcher/patience_text.h"

// What is said to people.
namespace launcher {

std::string Succession::late_text() const {
  const std::string seconds = patience_text(options_.patience.join);
  return trouble_.empty()
             ? "host " + followed_host_ + ", which coordinates this job by " +
                   options_.etcd + ", cannot be reached, and for " + seconds +
                   " no other one has taken over; check the network between "
                   "the hosts, or give --local-addr"
             : options_.etcd + " has not answered for " + seconds + ": " +
                   trouble_;
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
                          : "the job goes on, but its hosts cannot change "
                            "until it does");
  }
  return "waiting for " +
         (trouble_.empty()
              ? "host " + followed_host_ + ", which coordinates this job by " +
                    options_.etcd
              : options_.etcd + " (" + trouble_ + ")") +
         end;
}

}  // namespace launcher
