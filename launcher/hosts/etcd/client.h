#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/etcd/gateway.h"
#include "launcher/hosts/etcd/http.h"
#include "launcher/hosts/etcd/troubles.h"
#include "launcher/machine/background_call.h"
#include "launcher/net/name_answer.h"
#include "launcher/options/settings.h"

namespace launcher {

/// Sends requests to etcd without blocking the event loop, one call at a time.
/// Each call gets an answer within a bounded time.
class EtcdClient {
 public:
  using Handler = std::function<void(const EtcdAnswer&)>;

  EtcdClient(EventLoop& loop,
             EtcdSettings settings,
             const std::string& run_id,
             Handler handler);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  /// Starts a call, and cancels the previous call if it has no answer yet. The
  /// event loop calls the handler.
  void start(const EtcdCall& call);

  /// Addresses of the coordinator's host, from the latest answer with a
  /// coordinator.
  const std::vector<std::string>& coordinator_addresses() const {
    return coordinator_addresses_;
  }
  /// Where the other hosts find this one: `told`; if that is empty, where it
  /// has reached etcd from, or, on etcd's own host, as that one is called.
  std::string own_address(const std::string& told) const;

 private:
  /// One request, and what its answer changes.
  struct Step {
    std::function<GatewayRequest()> request;
    std::function<std::optional<GatewayError>(const HttpAnswer&)> read;
    std::optional<std::chrono::milliseconds> limit{};
    EtcdHttp::IsEnough is_enough{};
  };
  using Troubles = std::vector<EtcdTrouble>;

  Step authentication();
  Step granting(std::chrono::seconds time, int64_t EtcdLeases::*lease);
  Step renewing(int64_t lease);
  Step transacting(const std::function<EtcdTransaction()>& transaction);
  Step watching(int64_t seen_revision);
  void add_steps(const EtcdCall& call);

  void begin_step();
  void send();
  void on_result(const std::variant<HttpAnswer, HttpError>& result);
  void fail();
  void fail_late();
  void finish();
  void look_up(const std::string& host,
               const std::function<void(const NameAnswer&)>& then);

  EventLoop& loop_;
  EtcdSettings settings_;
  Handler handler_;
  EtcdHttp http_;
  std::string coordinator_key_;
  std::string record_key_;
  std::optional<BackgroundCall> lookup_;

  // Outlives a call.
  std::string token_;
  size_t endpoint_ = 0;                 // index of the one that is asked
  std::map<size_t, NameAnswer> known_;  // hosts of endpoints that answered
  std::string local_address_;           // of this host, towards etcd
  std::vector<std::string> coordinator_addresses_;

  // Of the call.
  std::deque<Step> steps_;
  Troubles troubles_;            // with the first step
  std::vector<Endpoint> asked_;  // for it
  bool has_new_token_ = false;
  bool are_leases_alive_ = true;
  EtcdAnswer answer_;
};

}  // namespace launcher
