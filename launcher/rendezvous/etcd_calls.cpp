#include "launcher/rendezvous/etcd_calls.h"

#include <utility>

#include "launcher/etcd/answer_text.h"
#include "launcher/etcd/record.h"
#include "launcher/names/name_answer.h"
#include "launcher/net/address.h"

namespace launcher {
namespace {

constexpr const char* kCallTimer = "call of etcd";

}  // namespace

EtcdCalls::EtcdCalls(EventLoop& loop,
                     EtcdSettings settings,
                     std::string run_id,
                     Handler handler)
    : loop_(loop),
      settings_(std::move(settings)),
      run_id_(std::move(run_id)),
      handler_(std::move(handler)) {}

EtcdCalls::~EtcdCalls() {
  loop_.disarm_timer(kCallTimer);
}

void EtcdCalls::start(const EtcdCall& call) {
  call_.reset();
  call_.emplace(
      loop_,
      [settings = settings_, run_id = run_id_, call, last = last_] {
        EtcdAnswer answer = call_etcd(settings, run_id, call, last);
        const auto place = answer.coordinator
                               ? decode_place(answer.coordinator->value)
                               : std::nullopt;
        if (place) {
          answer.addresses = encode(ask_name_service(place->endpoint.host));
        }
        return encode_etcd_answer(answer);
      },
      [this](const std::optional<std::string>& text) { take(text); });
  loop_.arm_timer(
      kCallTimer, limit_of(settings_), [this] { take(std::nullopt); });
}

std::string EtcdCalls::own_address(const std::string& told) const {
  if (!told.empty()) {
    return told;
  }
  const auto found = addresses_of(last_.local_address, 0);
  const bool is_hidden = found.empty() || is_loopback(found.front());
  const size_t asked = last_.endpoint % settings_.endpoints.size();
  return is_hidden ? settings_.endpoints[asked].host : last_.local_address;
}

void EtcdCalls::take(const std::optional<std::string>& text) {
  loop_.disarm_timer(kCallTimer);
  call_.reset();
  auto answer = text ? decode_etcd_answer(*text) : std::nullopt;
  if (!answer) {
    answer = EtcdAnswer{.text =
                            "no answer in time; check the name service, "
                            "and that etcd's host is there",
                        .token = last_.token,
                        .endpoint = last_.endpoint + 1};
  }
  if (answer->local_address.empty()) {
    answer->local_address = last_.local_address;
  }
  if (!answer->coordinator) {
    answer->addresses = last_.addresses;
  }
  last_ = *answer;
  handler_(last_);
}

}  // namespace launcher
