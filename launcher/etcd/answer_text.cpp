#include "launcher/etcd/answer_text.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "ddp/detail/number.h"
#include "launcher/rendezvous/message_fields.h"

namespace launcher {
namespace {

using AnswerJson = nlohmann::json;

void add_entry(AnswerJson& json,
               const char* name,
               const std::optional<EtcdEntry>& entry) {
  if (entry) {
    json[name] = {{"value", to_base64(entry->value)},
                  {"revision", entry->revision}};
  }
}

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max() / 4;

std::optional<EtcdEntry> entry_of(const AnswerJson& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_object()) {
    return std::nullopt;
  }
  MessageFields fields(*found);
  const auto value = from_base64(fields.text("value", 2 * kLongestEtcdValue));
  const int64_t revision = fields.integer("revision", 0, kLargest);
  return value && fields.are_valid()
             ? std::optional(EtcdEntry{*value, revision})
             : std::nullopt;
}

}  // namespace

std::string encode_etcd_answer(const EtcdAnswer& answer) {
  AnswerJson json{
      {"outcome", static_cast<int>(answer.outcome)},
      {"text", answer.text},
      {"revision", answer.revision},
      {"coordinator_lease", std::to_string(answer.leases.coordinator)},
      {"record_lease", std::to_string(answer.leases.record)},
      {"address", answer.local_address},
      {"addresses", answer.addresses},
      {"token", answer.token},
      {"endpoint", answer.endpoint}};
  add_entry(json, "coordinator", answer.coordinator);
  add_entry(json, "record", answer.record);
  return json.dump(-1, ' ', false, AnswerJson::error_handler_t::replace);
}

std::optional<EtcdAnswer> decode_etcd_answer(const std::string& text) {
  constexpr size_t kLongestText = 8 * 1024;
  const AnswerJson json = AnswerJson::parse(text, nullptr, false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  MessageFields fields(json);
  const auto lease_of = [&](const char* name) {
    const auto lease = ddp::detail::parse_number<int64_t>(fields.text(name));
    return lease.value_or(0);
  };
  EtcdAnswer answer;
  answer.outcome =
      static_cast<EtcdAnswer::Outcome>(fields.count("outcome", 0, 3));
  answer.text = fields.text("text", kLongestText);
  answer.revision = fields.integer("revision", 0, kLargest);
  answer.leases = {lease_of("coordinator_lease"), lease_of("record_lease")};
  answer.local_address = fields.text("address");
  answer.addresses = fields.text("addresses", kLongestText);
  answer.token = fields.text("token", kLongestText);
  answer.endpoint =
      static_cast<size_t>(fields.integer("endpoint", 0, kLargest));
  answer.coordinator = entry_of(json, "coordinator");
  answer.record = entry_of(json, "record");
  return fields.are_valid() ? std::optional(answer) : std::nullopt;
}

}  // namespace launcher
