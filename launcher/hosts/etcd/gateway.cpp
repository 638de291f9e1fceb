#include "launcher/hosts/etcd/gateway.h"

#include <array>
#include <nlohmann/json.hpp>

#include "ddp/base/text/number.h"
#include "launcher/base/one_line.h"
#include "launcher/base/shortened.h"

namespace launcher {
namespace {

using GatewayJson = nlohmann::json;

constexpr std::string_view kDigits64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr size_t kLongestReason = 300;

std::string dump(const GatewayJson& json) {
  return json.dump(/*indent=*/-1,
                   /*indent_char=*/' ',
                   /*ensure_ascii=*/false,
                   GatewayJson::error_handler_t::replace);
}

GatewayJson parse_json(std::string_view body) {
  return body.size() > kLongestGatewayAnswer
             ? GatewayJson(GatewayJson::value_t::discarded)
             : GatewayJson::parse(body.begin(),
                                  body.end(),
                                  /*cb=*/nullptr,
                                  /*allow_exceptions=*/false);
}

const GatewayJson& member_of(const GatewayJson& json, const char* name) {
  static const GatewayJson kNothing;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return json.is_object() && found != json.end() ? *found : kNothing;
}

std::string text_in(const GatewayJson& json, const char* name) {
  const GatewayJson& found = member_of(json, name);
  return found.is_string() ? found.get<std::string>() : "";
}

/// Reads a number; 0 if it is negative or missing, because the gateway omits
/// zeros.
int64_t number_in(const GatewayJson& json, const char* name) {
  const auto number = ddp::detail::parse_number<int64_t>(text_in(json, name));
  return number && *number > 0 ? *number : 0;
}

GatewayJson range_of(const std::string& key) {
  return {{"request_range", {{"key", to_base64(key)}}}};
}

GatewayError stranger(int status, std::string_view body) {
  // Errors that etcd finds before its gateway runs are plain text.
  constexpr size_t kLongestQuote = 120;
  const std::string quote =
      on_one_line(shortened(std::string(body), kLongestQuote));
  const bool is_of_certificate =
      body.find("CommonName of client") != std::string_view::npos;
  return {is_of_certificate ? GatewayError::Kind::certificate
                            : GatewayError::Kind::stranger,
          "what came is no answer of etcd's v3 gateway (HTTP status " +
              std::to_string(status) + ": \"" + quote + "\")"};
}

/// Whether an error code of gRPC is temporary.
bool is_passing(int64_t code) {
  constexpr int64_t kCanceled = 1;  // of an etcd that is ending
  constexpr int64_t kDeadline = 4;
  constexpr int64_t kExhausted = 8;
  constexpr int64_t kAborted = 10;
  constexpr int64_t kUnavailable = 14;
  return code == kCanceled || code == kDeadline || code == kExhausted ||
         code == kAborted || code == kUnavailable;
}

std::optional<GatewayError> error_in(int status,
                                     std::string_view body,
                                     const GatewayJson& json) {
  constexpr int64_t kUnauthenticated = 16;
  const GatewayJson& inner = member_of(json, "error");
  const GatewayJson& error = inner.is_object() ? inner : json;
  std::string text = text_in(error, "message");
  text = text.empty() ? text_in(json, "error") : text;
  if (!json.is_object() || (status != 200 && text.empty())) {
    return stranger(status, body);
  }
  if (text.empty()) {
    return std::nullopt;
  }
  text = on_one_line(shortened(text, kLongestReason));
  const GatewayJson& number = inner.is_object() ? member_of(error, "grpc_code")
                                                : member_of(error, "code");
  const int64_t code = number.is_number_integer() ? number.get<int64_t>() : -1;
  return GatewayError{code == kUnauthenticated ? GatewayError::Kind::old_token
                      : is_passing(code)       ? GatewayError::Kind::passing
                                               : GatewayError::Kind::refused,
                      text};
}

std::optional<EtcdEntry> entry_in(const GatewayJson& range, bool& is_valid) {
  const GatewayJson& pairs = member_of(range, "kvs");
  if (!pairs.is_array() || pairs.empty()) {
    return std::nullopt;
  }
  const auto value = from_base64(text_in(pairs.front(), "value"));
  const int64_t revision = number_in(pairs.front(), "mod_revision");
  if (!value || value->size() > kLongestEtcdValue || revision == 0) {
    is_valid = false;
    return std::nullopt;
  }
  return EtcdEntry{*value, revision};
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    for (size_t index = 0; index < 3; ++index) {
      group =
          group << 8 |
          (index < count ? static_cast<unsigned char>(bytes[at + index]) : 0U);
    }
    for (size_t index = 0; index < 4; ++index) {
      text += index <= count ? kDigits64[group >> (18 - 6 * index) & 63] : '=';
    }
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) {
    return std::nullopt;
  }
  const size_t end = text.find_last_not_of('=') + 1;
  if (text.size() - end > 2) {
    return std::nullopt;
  }
  std::string bytes;
  uint32_t group = 0;
  int bits = 0;
  for (const char digit : text.substr(0, end)) {
    const size_t value = kDigits64.find(digit);
    if (value == std::string_view::npos) {
      return std::nullopt;
    }
    group = group << 6 | static_cast<uint32_t>(value);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      bytes += static_cast<char>(group >> bits & 0xff);
    }
  }
  return (group & ((1U << bits) - 1)) == 0 ? std::optional(bytes)
                                           : std::nullopt;
}

GatewayRequest authenticate_request(const std::string& user,
                                    const std::string& password) {
  return {"/v3/auth/authenticate",
          dump({{"name", user}, {"password", password}})};
}

GatewayRequest grant_request(std::chrono::seconds time) {
  return {"/v3/lease/grant", dump({{"TTL", std::to_string(time.count())}})};
}

GatewayRequest renew_request(int64_t lease) {
  return {"/v3/lease/keepalive", dump({{"ID", std::to_string(lease)}})};
}

GatewayRequest request_of(const EtcdTransaction& transaction) {
  GatewayJson compare = GatewayJson::array();
  for (const auto& expected : transaction.expected) {
    compare.push_back({{"key", to_base64(expected.key)},
                       {"target", "MOD"},
                       {"result", "EQUAL"},
                       {"mod_revision", std::to_string(expected.revision)}});
  }
  GatewayJson writes = GatewayJson::array();
  for (const auto& write : transaction.writes) {
    writes.push_back({{"request_put",
                       {{"key", to_base64(write.key)},
                        {"value", to_base64(write.value)},
                        {"lease", std::to_string(write.lease)}}}});
  }
  for (const std::string& key : transaction.removals) {
    writes.push_back({{"request_delete_range", {{"key", to_base64(key)}}}});
  }
  GatewayJson reads = GatewayJson::array();
  for (const std::string& key : transaction.reads) {
    reads.push_back(range_of(key));
  }
  const bool always_holds = transaction.expected.empty();
  return {"/v3/kv/txn",
          dump({{"compare", compare},
                {"success", writes.empty() ? reads : writes},
                {"failure", always_holds ? GatewayJson::array() : reads}})};
}

GatewayRequest watch_request(const std::string& key, int64_t from_revision) {
  return {"/v3/watch",
          dump({{"create_request",
                 {{"key", to_base64(key)},
                  {"start_revision", std::to_string(from_revision)}}}})};
}

GatewayAnswer<std::string> read_token(int status, std::string_view body) {
  constexpr size_t kLongestToken = 8 * 1024;
  const GatewayJson json = parse_json(body);
  if (const auto error = error_in(status, body, json)) {
    return *error;
  }
  const std::string token = text_in(json, "token");
  const bool is_plain =
      token.find_first_not_of(
          "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
          "+/=-_.~") == std::string::npos;
  if (token.empty() || token.size() > kLongestToken || !is_plain) {
    return stranger(status, body);
  }
  return token;
}

GatewayAnswer<GrantedLease> read_lease(int status, std::string_view body) {
  constexpr int64_t kMostSeconds = int64_t{1} << 40;
  const GatewayJson json = parse_json(body);
  if (const auto error = error_in(status, body, json)) {
    return *error;
  }
  // The answer to a grant is an object, the answer to a renewal a stream of one
  // result.
  const GatewayJson& result = member_of(json, "result");
  const GatewayJson& lease = result.is_object() ? result : json;
  const int64_t id = number_in(lease, "ID");
  const int64_t time = number_in(lease, "TTL");
  if (id == 0 || time > kMostSeconds) {
    return stranger(status, body);
  }
  return GrantedLease{id, std::chrono::seconds(time)};
}

GatewayAnswer<EtcdOutcome> read_outcome(int status,
                                        std::string_view body,
                                        size_t reads) {
  const GatewayJson json = parse_json(body);
  if (const auto error = error_in(status, body, json)) {
    return *error;
  }
  const GatewayJson& succeeded = member_of(json, "succeeded");
  EtcdOutcome outcome;
  outcome.is_done = succeeded.is_boolean() && succeeded.get<bool>();
  outcome.revision = number_in(member_of(json, "header"), "revision");
  const GatewayJson& responses = member_of(json, "responses");
  bool is_valid = outcome.revision > 0;
  if (responses.is_array()) {
    for (const GatewayJson& response : responses) {
      const GatewayJson& range = member_of(response, "response_range");
      if (range.is_object()) {
        outcome.entries.push_back(entry_in(range, is_valid));
      }
    }
  }
  const bool has_read = !outcome.entries.empty();
  if (!is_valid || (has_read && outcome.entries.size() != reads) ||
      (!has_read && !outcome.is_done)) {
    return stranger(status, body);
  }
  return outcome;
}

bool has_change(std::string_view lines) {
  for (size_t end; (end = lines.find('\n')) != std::string_view::npos;
       lines.remove_prefix(end + 1)) {
    const GatewayJson json = parse_json(lines.substr(0, end));
    const GatewayJson& result = member_of(json, "result");
    const GatewayJson& events = member_of(result, "events");
    const GatewayJson& canceled = member_of(result, "canceled");
    if ((events.is_array() && !events.empty()) || canceled.is_boolean()) {
      return true;
    }
  }
  return false;
}

}  // namespace launcher
