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
#include "launcher/options/etcd_options.h"

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
  /// Address of this host for the others: `given`; if that is empty, the
  /// address of its connection to etcd or, on etcd's own host, the name of that
  /// host.
  std::string own_address(const std::string& given) const;

 private:
  /// One request with its effect.
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
  void fail_by_timeout();
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

  // State that outlives a call.
  std::string token_;
  size_t endpoint_ = 0;                 // index of the endpoint in use
  std::map<size_t, NameAnswer> known_;  // addresses of endpoints that answered
  std::string local_address_;  // of this host in its connection to etcd
  std::vector<std::string> coordinator_addresses_;

  // State of the present call.
  std::deque<Step> steps_;
  Troubles troubles_;            // of the first step in steps_
  std::vector<Endpoint> tried_;  // for that step
  bool has_new_token_ = false;
  bool are_leases_alive_ = true;
  EtcdAnswer answer_;
};

}  // namespace launcher
