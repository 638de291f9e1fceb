#include "launcher/etcd/call.h"

#include <utility>

#include "launcher/etcd/http.h"
#include "launcher/etcd/troubles.h"

namespace launcher {
namespace {

// Of a watch: who waits for a lease to end needs no more, and hears of nothing
// where etcd has gone.
constexpr std::chrono::milliseconds kWatchTime{10'000};
// Requests of the longest call: two leases, a transaction, and each again with
// a new token.
constexpr int kMostRequests = 5;

using Troubles = std::vector<EtcdTrouble>;

/// The requests of one call.
class Caller {
 public:
  Caller(const EtcdSettings& settings,
         const std::string& run_id,
         const EtcdAnswer& last)
      : settings_(settings),
        http_(settings),
        coordinator_key_(settings.prefix + "/" + run_id + "/coordinator"),
        record_key_(settings.prefix + "/" + run_id + "/record") {
    answer_.token = last.token;
    answer_.endpoint = last.endpoint % settings.endpoints.size();
  }

  EtcdAnswer call(const EtcdCall& call) {
    if (is_identified()) {
      do_call(call);
    }
    return std::move(answer_);
  }

 private:
  /// @return whether to go on
  bool is_identified() {
    if (settings_.user.empty() || !answer_.token.empty()) {
      return true;
    }
    const auto token = reach<std::string>(
        authenticate_request(settings_.user, settings_.password),
        [](const HttpAnswer& there) {
          return read_token(there.status, there.body);
        });
    if (const auto* text = std::get_if<std::string>(&token)) {
      answer_.token = *text;
      return true;
    }
    const auto& troubles = std::get<Troubles>(token);
    if (troubles.back().text.find("not enabled") != std::string::npos) {
      return true;  // anyone may do anything there
    }
    fail(troubles);
    return false;
  }

  void do_call(const EtcdCall& call) {
    switch (call.kind) {
      case EtcdCall::Kind::read:
        transact({.reads = {coordinator_key_, record_key_}});
        return;
      case EtcdCall::Kind::campaign:
        if (grant(call.coordinator_time, answer_.leases.coordinator) &&
            grant(call.record_time, answer_.leases.record)) {
          transact(
              {.expected = {{coordinator_key_, call.coordinator_revision},
                            {record_key_, call.record_revision}},
               .writes = {{coordinator_key_,
                           call.coordinator,
                           answer_.leases.coordinator},
                          {record_key_, call.record, answer_.leases.record}},
               .reads = {coordinator_key_, record_key_}});
        }
        return;
      case EtcdCall::Kind::save:
        transact({.expected = {{coordinator_key_, call.coordinator_revision}},
                  .writes = {{record_key_, call.record, call.leases.record}},
                  .removals = call.gives_up
                                  ? std::vector<std::string>{coordinator_key_}
                                  : std::vector<std::string>{},
                  .reads = {coordinator_key_, record_key_}});
        return;
      case EtcdCall::Kind::renew:
        renew(call);
        return;
      case EtcdCall::Kind::wait:
        wait(call.coordinator_revision);
        return;
    }
  }

  void transact(const EtcdTransaction& transaction) {
    const auto outcome =
        ask<EtcdOutcome>(request_of(transaction), [&](const HttpAnswer& there) {
          return read_outcome(
              there.status, there.body, transaction.reads.size());
        });
    if (!outcome) {
      return;
    }
    answer_.outcome = outcome->is_done ? EtcdAnswer::Outcome::done
                                       : EtcdAnswer::Outcome::denied;
    answer_.revision = outcome->revision;
    if (outcome->entries.size() == 2) {
      answer_.coordinator = outcome->entries[0];
      answer_.record = outcome->entries[1];
    }
  }

  bool grant(std::chrono::seconds time, int64_t& lease) {
    const auto granted =
        ask<GrantedLease>(grant_request(time), [](const HttpAnswer& there) {
          return read_lease(there.status, there.body);
        });
    lease = granted ? granted->id : 0;
    return granted.has_value();
  }

  /// A lease that lives says nothing of the key, which another one may have
  /// written.
  void renew(const EtcdCall& call) {
    bool are_alive = true;
    for (const int64_t lease : {call.leases.coordinator, call.leases.record}) {
      const auto renewed =
          ask<GrantedLease>(renew_request(lease), [](const HttpAnswer& there) {
            return read_lease(there.status, there.body);
          });
      if (!renewed) {
        return;
      }
      are_alive = are_alive && renewed->time.count() > 0;
    }
    transact({.expected = {{coordinator_key_, call.coordinator_revision}},
              .reads = {coordinator_key_, record_key_}});
    if (!are_alive && answer_.outcome == EtcdAnswer::Outcome::done) {
      answer_.outcome = EtcdAnswer::Outcome::denied;
    }
  }

  void wait(int64_t seen_revision) {
    struct Watched {};
    const auto watched = reach<Watched>(
        watch_request(coordinator_key_, seen_revision + 1),
        [](const HttpAnswer&) { return GatewayAnswer<Watched>(Watched{}); },
        kWatchTime,
        has_change);
    if (const auto* troubles = std::get_if<Troubles>(&watched)) {
      fail(*troubles);
    } else {
      answer_.outcome = EtcdAnswer::Outcome::done;
    }
  }

  template <typename Answer, typename Read>
  std::optional<Answer> ask(const GatewayRequest& request, const Read& read) {
    for (const bool may_ask_again : {true, false}) {
      const auto found = reach<Answer>(request, read);
      if (const auto* answer = std::get_if<Answer>(&found)) {
        return *answer;
      }
      const auto& troubles = std::get<Troubles>(found);
      const bool is_old = troubles.back().kind == EtcdTrouble::Kind::old_token;
      if (!is_old || !may_ask_again || settings_.user.empty()) {
        fail(troubles);
        return std::nullopt;
      }
      answer_.token.clear();
      if (!is_identified()) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  /// Asks the endpoint in use and, while one has trouble, the next.
  template <typename Answer, typename Read>
  std::variant<Answer, Troubles> reach(
      const GatewayRequest& request,
      const Read& read,
      std::optional<std::chrono::milliseconds> limit = std::nullopt,
      const std::function<bool(std::string_view)>& is_enough = {}) {
    Troubles troubles;
    asked_.clear();
    while (troubles.size() < settings_.endpoints.size()) {
      const Endpoint& endpoint = settings_.endpoints[answer_.endpoint];
      asked_.push_back(endpoint);
      const auto response = http_.post(endpoint,
                                       request,
                                       answer_.token,
                                       limit.value_or(settings_.request_time),
                                       is_enough);
      if (const auto* there = std::get_if<HttpAnswer>(&response)) {
        answer_.local_address = there->local_address;
        const GatewayAnswer<Answer> found = read(*there);
        if (const auto* answer = std::get_if<Answer>(&found)) {
          return *answer;
        }
        troubles.push_back(
            trouble_of(std::get<GatewayError>(found), settings_));
      } else {
        troubles.push_back(trouble_of(std::get<HttpError>(response)));
      }
      if (!is_of_one_endpoint(troubles.back())) {
        break;
      }
      answer_.endpoint = (answer_.endpoint + 1) % settings_.endpoints.size();
    }
    return troubles;
  }

  void fail(const Troubles& troubles) {
    answer_.outcome = outcome_of(troubles);
    answer_.text = text_of(troubles, asked_);
    if (!is_of_one_endpoint(troubles.back())) {
      answer_.token.clear();
    }
  }

  const EtcdSettings& settings_;
  EtcdHttp http_;
  std::string coordinator_key_;
  std::string record_key_;
  std::vector<Endpoint> asked_;  // of the last request
  EtcdAnswer answer_;
};

}  // namespace

std::chrono::milliseconds limit_of(const EtcdSettings& settings) {
  const auto count = static_cast<int>(settings.endpoints.size());
  return count * (kMostRequests * settings.request_time + kWatchTime);
}

EtcdAnswer call_etcd(const EtcdSettings& settings,
                     const std::string& run_id,
                     const EtcdCall& call,
                     const EtcdAnswer& last) {
  return Caller(settings, run_id, last).call(call);
}

}  // namespace launcher
