#include "launcher/etcd/call.h"

#include <utility>

#include "launcher/etcd/http.h"

namespace launcher {
namespace {

// Of a watch: who waits for a lease to end needs no more, and hears of nothing
// where etcd has gone.
constexpr std::chrono::milliseconds kWatchTime{10'000};
// Requests of the longest call: two leases, a transaction, and each again with
// a new token.
constexpr int kMostRequests = 5;

std::string advice_for(const EtcdSettings& settings, const HttpError& error) {
  switch (error.kind) {
    case HttpError::Kind::no_library:
      return "; install it (libcurl4), or meet with --rdzv-backend=c10d";
    case HttpError::Kind::tls:
      return "; check protocol, ca_cert, ssl_cert and ssl_cert_key in "
             "--rdzv-conf";
    case HttpError::Kind::stranger:
      return "; check the port of --rdzv-endpoint";
    case HttpError::Kind::unreachable:
      return "; check that etcd runs there, --rdzv-endpoint and the firewall";
  }
  return "";
}

/// The requests of one call.
class Caller {
 public:
  Caller(const EtcdSettings& settings,
         const std::string& run_id,
         std::string token)
      : settings_(settings),
        http_(settings),
        coordinator_key_(settings.prefix + "/" + run_id + "/coordinator"),
        record_key_(settings.prefix + "/" + run_id + "/record") {
    answer_.token = std::move(token);
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
    const auto response = http_.post(
        authenticate_request(settings_.user, settings_.password), "", limit());
    const auto* there = std::get_if<HttpAnswer>(&response);
    if (there == nullptr) {
      return fail(std::get<HttpError>(response));
    }
    const auto token = read_token(there->status, there->body);
    if (const auto* text = std::get_if<std::string>(&token)) {
      answer_.token = *text;
      return true;
    }
    const auto& error = std::get<GatewayError>(token);
    if (error.text.find("not enabled") != std::string::npos) {
      return true;  // anyone may do anything there
    }
    return fail(error);
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
        if (renew(call.leases.coordinator) && renew(call.leases.record)) {
          answer_.outcome = EtcdAnswer::Outcome::done;
        }
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

  bool renew(int64_t lease) {
    const auto renewed =
        ask<GrantedLease>(renew_request(lease), [](const HttpAnswer& there) {
          return read_lease(there.status, there.body);
        });
    if (renewed && renewed->time.count() == 0) {
      answer_.outcome = EtcdAnswer::Outcome::denied;
      return false;
    }
    return renewed.has_value();
  }

  void wait(int64_t seen_revision) {
    const auto response =
        http_.post(watch_request(coordinator_key_, seen_revision + 1),
                   answer_.token,
                   kWatchTime,
                   has_change);
    if (const auto* error = std::get_if<HttpError>(&response)) {
      fail(*error);
    } else {
      answer_.outcome = EtcdAnswer::Outcome::done;
    }
  }

  template <typename Answer, typename Read>
  std::optional<Answer> ask(const GatewayRequest& request, const Read& read) {
    for (const bool may_ask_again : {true, false}) {
      const auto response = http_.post(request, answer_.token, limit());
      const auto* there = std::get_if<HttpAnswer>(&response);
      if (there == nullptr) {
        fail(std::get<HttpError>(response));
        return std::nullopt;
      }
      answer_.local_address = there->local_address;
      const auto found = read(*there);
      if (const auto* answer = std::get_if<Answer>(&found)) {
        return *answer;
      }
      const auto& error = std::get<GatewayError>(found);
      const bool is_old = error.kind == GatewayError::Kind::old_token;
      if (!is_old || !may_ask_again || settings_.user.empty()) {
        fail(error);
        return std::nullopt;
      }
      answer_.token.clear();
      if (!is_identified()) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  bool fail(const HttpError& error) {
    answer_.outcome = error.kind == HttpError::Kind::unreachable
                          ? EtcdAnswer::Outcome::unreachable
                          : EtcdAnswer::Outcome::hopeless;
    answer_.text = error.text + advice_for(settings_, error);
    return false;
  }

  bool fail(const GatewayError& error) {
    using Kind = GatewayError::Kind;
    answer_.outcome = error.kind == Kind::passing
                          ? EtcdAnswer::Outcome::unreachable
                          : EtcdAnswer::Outcome::hopeless;
    answer_.token.clear();
    answer_.text =
        error.text +
        (error.kind == Kind::passing ? "; look at that etcd's messages"
         : error.kind == Kind::stranger
             ? "; check the port of --rdzv-endpoint, --rdzv-conf protocol, and "
               "that it is etcd 3.4 or newer"
             : "; check DDPRUN_ETCD_USER, DDPRUN_ETCD_PASSWORD and the user's "
               "rights to keys below " +
                   settings_.prefix);
    return false;
  }

  std::chrono::milliseconds limit() const { return settings_.request_time; }

  const EtcdSettings& settings_;
  EtcdHttp http_;
  std::string coordinator_key_;
  std::string record_key_;
  EtcdAnswer answer_;
};

}  // namespace

std::chrono::milliseconds limit_of(const EtcdSettings& settings) {
  return kMostRequests * settings.request_time + kWatchTime;
}

EtcdAnswer call_etcd(const EtcdSettings& settings,
                     const std::string& run_id,
                     const EtcdCall& call,
                     const std::string& token) {
  return Caller(settings, run_id, token).call(call);
}

}  // namespace launcher
