#include "launcher/hosts/protocol/waiting_text.h"

#include <algorithm>

namespace launcher {

std::string wait_for_others_text(const HostTable& hosts,
                                 int count,
                                 int generation) {
  return "its workers have succeeded; those of " +
         names_of(hosts,
                  count,
                  [generation](const KnownHost& host) {
                    return host.seat && !host.has_succeeded_in(generation);
                  }) +
         " have not yet";
}

std::string wait_for_place_text(bool has_success) {
  return has_success
             ? "the workers of another host have succeeded, so the job takes "
               "in no more hosts; it waits for its end"
             : "as many hosts are at work as --nnodes allows; it starts when "
               "one of them is lost";
}

std::string wait_for_answer_text(bool was_heard,
                                 std::chrono::nanoseconds left) {
  return was_heard ? "the connection is lost; gives up" + in_seconds(left)
                   : "no ddprun has answered there yet; gives up" +
                         in_seconds(left) + " (--rdzv-conf join_timeout)";
}

std::string loopback_text(const std::string& place) {
  return place.empty()
             ? ""
             : "; no other machine reaches " + place +
                   ", a loopback address: give all hosts this machine's "
                   "name or address instead";
}

std::string in_seconds(std::chrono::nanoseconds time) {
  const auto left = std::max(std::chrono::ceil<std::chrono::seconds>(time),
                             std::chrono::seconds(0));
  return " in " + std::to_string(left.count()) + " s";
}

void WaitingNews::start(Time now, std::chrono::milliseconds first) {
  due_ = now + first;
  was_printed_ = false;
}

void WaitingNews::mark_printed(Time now) {
  using std::chrono::minutes;
  due_ = now + (was_printed_ ? minutes(5) : minutes(1));
  was_printed_ = true;
}

}  // namespace launcher
