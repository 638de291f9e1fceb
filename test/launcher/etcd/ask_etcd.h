#pragma once

#include <optional>
#include <string>

#include "launcher/hosts/etcd/client.h"

namespace launcher::test {

/// Makes one call and waits for its answer.
inline EtcdAnswer ask_etcd(EventLoop& loop,
                           const EtcdSettings& settings,
                           const std::string& run_id,
                           const EtcdCall& call) {
  std::optional<EtcdAnswer> answer;
  EtcdClient client(
      loop, settings, run_id, [&](const EtcdAnswer& known) { answer = known; });
  client.start(call);
  while (!answer) {
    loop.run_once();
  }
  return *answer;
}

/// Returns etcd's data of a job.
inline EtcdAnswer ask_etcd(const EtcdSettings& settings,
                           const std::string& run_id) {
  EventLoop loop;
  return ask_etcd(loop, settings, run_id, {});
}

}  // namespace launcher::test
