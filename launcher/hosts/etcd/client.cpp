#include "launcher/hosts/etcd/client.h"

#include <netdb.h>

#include <system_error>
#include <utility>

#include "launcher/hosts/etcd/job_state.h"
#include "launcher/net/address.h"

namespace launcher {
namespace {

constexpr const char* kCallTimer = "call of etcd";
// Longest time of a watch. It ends early enough to notice the end of a lease
// and the loss of etcd.
constexpr std::chrono::milliseconds kWatchTime{10'000};
// Number of requests in the longest call: a token, two leases, a transaction,
// and one of them again with a new token.
constexpr int kMostRequests = 6;

/// Longest time that a call takes.
std::chrono::milliseconds longest_call(const EtcdSettings& settings) {
  const auto count = static_cast<int>(settings.endpoints.size());
  return count * (kMostRequests * settings.request_time + kWatchTime);
}

}  // namespace

EtcdClient::EtcdClient(EventLoop& loop,
                       EtcdSettings settings,
                       const std::string& run_id,
                       Handler handler)
    : loop_(loop),
      settings_(std::move(settings)),
      handler_(std::move(handler)),
      http_(loop, settings_),
      coordinator_key_(settings_.prefix + "/" + run_id + "/coordinator"),
      record_key_(settings_.prefix + "/" + run_id + "/record") {}

EtcdClient::~EtcdClient() {
  loop_.disarm_timer(kCallTimer);
}

void EtcdClient::start(const EtcdCall& call) {
  http_.cancel();
  lookup_.reset();
  steps_.clear();
  answer_ = {};
  has_new_token_ = false;
  are_leases_alive_ = true;
  if (!settings_.user.empty() && token_.empty()) {
    steps_.push_back(authentication());
  }
  add_steps(call);
  loop_.arm_timer(
      kCallTimer, longest_call(settings_), [this] { fail_by_timeout(); });
  begin_step();
}

void EtcdClient::add_steps(const EtcdCall& call) {
  const std::vector<std::string> both{coordinator_key_, record_key_};
  switch (call.kind) {
    case EtcdCall::Kind::read:
      steps_.push_back(
          transacting([both] { return EtcdTransaction{.reads = both}; }));
      return;
    case EtcdCall::Kind::campaign:
      steps_.push_back(
          granting(call.coordinator_time, &EtcdLeases::coordinator));
      steps_.push_back(granting(call.record_time, &EtcdLeases::record));
      steps_.push_back(transacting([this, call, both] {
        return EtcdTransaction{
            .expected = {{coordinator_key_, call.coordinator_revision},
                         {record_key_, call.record_revision}},
            .writes = {{coordinator_key_,
                        call.coordinator,
                        answer_.leases.coordinator},
                       {record_key_, call.record, answer_.leases.record}},
            .reads = both};
      }));
      return;
    case EtcdCall::Kind::save:
      steps_.push_back(transacting([this, call, both] {
        return EtcdTransaction{
            .expected = {{coordinator_key_, call.coordinator_revision}},
            .writes = {{record_key_, call.record, call.leases.record}},
            .removals = call.gives_up ? std::vector{coordinator_key_}
                                      : std::vector<std::string>{},
            .reads = both};
      }));
      return;
    case EtcdCall::Kind::renew:
      steps_.push_back(renewing(call.leases.coordinator));
      steps_.push_back(renewing(call.leases.record));
      // Another host may have written the key while the lease lives.
      steps_.push_back(transacting([this, call, both] {
        return EtcdTransaction{
            .expected = {{coordinator_key_, call.coordinator_revision}},
            .reads = both};
      }));
      return;
    case EtcdCall::Kind::wait:
      steps_.push_back(watching(call.coordinator_revision));
      return;
  }
}

EtcdClient::Step EtcdClient::authentication() {
  return {
      .request =
          [this] {
            return authenticate_request(settings_.user, settings_.password);
          },
      .read = [this](const HttpAnswer& there) -> std::optional<GatewayError> {
        const auto token = read_token(there.status, there.body);
        const auto* error = std::get_if<GatewayError>(&token);
        if (error == nullptr) {
          token_ = std::get<std::string>(token);
          return std::nullopt;
        }
        // With authentication disabled, etcd needs no token.
        return error->text.find("not enabled") == std::string::npos
                   ? std::optional(*error)
                   : std::nullopt;
      }};
}

EtcdClient::Step EtcdClient::granting(std::chrono::seconds time,
                                      int64_t EtcdLeases::*lease) {
  return {.request = [time] { return grant_request(time); },
          .read = [this, lease](
                      const HttpAnswer& there) -> std::optional<GatewayError> {
            const auto granted = read_lease(there.status, there.body);
            if (const auto* error = std::get_if<GatewayError>(&granted)) {
              return *error;
            }
            answer_.leases.*lease = std::get<GrantedLease>(granted).id;
            return std::nullopt;
          }};
}

EtcdClient::Step EtcdClient::renewing(int64_t lease) {
  return {
      .request = [lease] { return renew_request(lease); },
      .read = [this](const HttpAnswer& there) -> std::optional<GatewayError> {
        const auto renewed = read_lease(there.status, there.body);
        if (const auto* error = std::get_if<GatewayError>(&renewed)) {
          return *error;
        }
        const bool is_alive = std::get<GrantedLease>(renewed).time.count() > 0;
        are_leases_alive_ = are_leases_alive_ && is_alive;
        return std::nullopt;
      }};
}

EtcdClient::Step EtcdClient::transacting(
    const std::function<EtcdTransaction()>& transaction) {
  return {
      .request = [transaction] { return request_of(transaction()); },
      .read = [this](const HttpAnswer& there) -> std::optional<GatewayError> {
        const auto read = read_outcome(there.status, there.body, /*reads=*/2);
        if (const auto* error = std::get_if<GatewayError>(&read)) {
          return *error;
        }
        const auto& outcome = std::get<EtcdOutcome>(read);
        answer_.outcome = outcome.is_done && are_leases_alive_
                              ? EtcdAnswer::Outcome::done
                              : EtcdAnswer::Outcome::denied;
        answer_.revision = outcome.revision;
        if (!outcome.entries.empty()) {
          answer_.coordinator = outcome.entries[0];
          answer_.record = outcome.entries[1];
        }
        return std::nullopt;
      }};
}

EtcdClient::Step EtcdClient::watching(int64_t seen_revision) {
  return {.request =
              [this, seen_revision] {
                return watch_request(coordinator_key_, seen_revision + 1);
              },
          .read = [this](const HttpAnswer&) -> std::optional<GatewayError> {
            answer_.outcome = EtcdAnswer::Outcome::done;
            return std::nullopt;
          },
          .limit = kWatchTime,
          .is_enough = has_change};
}

void EtcdClient::begin_step() {
  if (steps_.empty()) {
    finish();
    return;
  }
  troubles_.clear();
  tried_.clear();
  send();
}

/// Sends the request of the present step to the endpoint in use.
void EtcdClient::send() {
  const Endpoint& endpoint = settings_.endpoints[endpoint_];
  tried_.push_back(endpoint);
  const auto post = [this, endpoint](const NameAnswer& name) {
    const Step& step = steps_.front();
    http_.post(
        endpoint,
        name.addresses,
        step.request(),
        token_,
        step.limit.value_or(settings_.request_time),
        [this](const auto& result) { on_result(result); },
        step.is_enough);
  };
  const auto known = known_.find(endpoint_);
  if (is_address(endpoint.host) || known != known_.end()) {
    post(known != known_.end() ? known->second : NameAnswer{});
    return;
  }
  look_up(endpoint.host, [this, endpoint, post](const NameAnswer& name) {
    if (name.addresses.empty()) {
      on_result(HttpError{HttpError::Kind::unreachable,
                          problem_text(endpoint.host, name)});
    } else {
      known_[endpoint_] = name;
      post(name);
    }
  });
}

/// Handles the answer of one endpoint. Without an answer, sends the request to
/// the next one.
void EtcdClient::on_result(const std::variant<HttpAnswer, HttpError>& result) {
  if (const auto* there = std::get_if<HttpAnswer>(&result)) {
    local_address_ =
        there->local_address.empty() ? local_address_ : there->local_address;
    const auto error = steps_.front().read(*there);
    if (!error) {
      steps_.pop_front();
      begin_step();
      return;
    }
    troubles_.push_back(trouble_of(*error, settings_));
  } else {
    known_.erase(endpoint_);  // its name may have another address by now
    troubles_.push_back(trouble_of(std::get<HttpError>(result)));
  }
  if (is_of_one_endpoint(troubles_.back())) {
    endpoint_ = (endpoint_ + 1) % settings_.endpoints.size();
    if (troubles_.size() < settings_.endpoints.size()) {
      send();
      return;
    }
  }
  const bool is_old = troubles_.back().kind == EtcdTrouble::Kind::old_token;
  if (is_old && !settings_.user.empty() &&
      !std::exchange(has_new_token_, true)) {
    token_.clear();
    steps_.push_front(authentication());
    begin_step();
    return;
  }
  fail();
}

void EtcdClient::fail() {
  answer_.outcome = outcome_of(troubles_);
  answer_.text = text_of(troubles_, tried_);
  if (!is_of_one_endpoint(troubles_.back())) {
    token_.clear();
  }
  finish();
}

void EtcdClient::fail_by_timeout() {
  http_.cancel();
  lookup_.reset();
  endpoint_ = (endpoint_ + 1) % settings_.endpoints.size();
  answer_ = {.text =
                 "no answer in time; check the name service, and that "
                 "etcd's host is there"};
  finish();
}

void EtcdClient::finish() {
  const auto place = answer_.coordinator
                         ? decode_place(answer_.coordinator->value)
                         : std::nullopt;
  const auto answer = [this] {
    loop_.disarm_timer(kCallTimer);
    handler_(EtcdAnswer(std::exchange(answer_, {})));
  };
  if (!place) {
    answer();
    return;
  }
  if (is_address(place->endpoint.host)) {
    coordinator_addresses_ = {place->endpoint.host};
    answer();
    return;
  }
  look_up(place->endpoint.host, [this, answer](const NameAnswer& name) {
    coordinator_addresses_ = name.addresses;
    answer();
  });
}

void EtcdClient::look_up(const std::string& host,
                         const std::function<void(const NameAnswer&)>& then) {
  try {
    lookup_.emplace(
        loop_,
        [host] { return encode(ask_name_service(host)); },
        [this, then](const std::optional<std::string>& text) {
          lookup_.reset();
          then(text ? decode_answer(*text) : NameAnswer{.error = EAI_AGAIN});
        });
  } catch (const std::system_error&) {
    lookup_.reset();
    // The handler must not be called before start() returns.
    loop_.arm_timer(kCallTimer, std::chrono::milliseconds(0), [this] {
      fail_by_timeout();
    });
  }
}

std::string EtcdClient::own_address(const std::string& given) const {
  if (!given.empty()) {
    return given;
  }
  const auto found = addresses_of(local_address_, 0);
  const bool is_hidden = found.empty() || is_loopback(found.front());
  return is_hidden ? settings_.endpoints[endpoint_].host : local_address_;
}

}  // namespace launcher
