#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// What etcd's HTTP gateway is asked and answers (JSON of its v3 API, in which
// keys and values are base64 and 64 bit numbers are text). Pure.
namespace launcher {

/// Bytes of an answer that are read.
inline constexpr size_t kLongestGatewayAnswer = 256 * 1024;
/// Bytes of a value that is used.
inline constexpr size_t kLongestEtcdValue = 16 * 1024;

std::string to_base64(std::string_view bytes);
/// Nothing for what to_base64() does not make.
std::optional<std::string> from_base64(std::string_view text);

/// A POST.
struct GatewayRequest {
  std::string path;
  std::string body;
};

/// A key's value; its revision changes with every write of it.
struct EtcdEntry {
  std::string value;
  int64_t revision = 0;
};

/// Writes when all keys have the revisions that are expected. Reads where they
/// have not, and where there is nothing to write.
struct EtcdTransaction {
  struct Expectation {
    std::string key;
    int64_t revision = 0;  ///< 0: the key is not there
  };
  struct Write {
    std::string key;
    std::string value;
    int64_t lease = 0;  ///< the key goes with it
  };
  std::vector<Expectation> expected{};
  std::vector<Write> writes{};
  std::vector<std::string> removals{};
  std::vector<std::string> reads{};
};

GatewayRequest authenticate_request(const std::string& user,
                                    const std::string& password);
GatewayRequest grant_request(std::chrono::seconds time);
GatewayRequest renew_request(int64_t lease);
GatewayRequest request_of(const EtcdTransaction& transaction);
/// Answered, line by line, when the key changes at that revision or later.
GatewayRequest watch_request(const std::string& key, int64_t from_revision);

/// Why there is no answer.
struct GatewayError {
  enum class Kind {
    passing,      ///< etcd is there and cannot answer now
    refused,      ///< it does not do it: who asks has to change something
    old_token,    ///< to be asked again with another one
    certificate,  ///< it takes none with a common name beside a password
    stranger      ///< who answers is no etcd
  };
  Kind kind = Kind::stranger;
  std::string text{};
};
template <typename Answer>
using GatewayAnswer = std::variant<Answer, GatewayError>;

struct GrantedLease {
  int64_t id = 0;
  std::chrono::seconds time{0};  ///< that is left; 0: there is no such lease
};
struct EtcdOutcome {
  bool is_done = false;  ///< the keys had the revisions that were expected
  int64_t revision = 0;  ///< of etcd, and of what was written
  std::vector<std::optional<EtcdEntry>> entries{};  ///< that were read
};

/// @param status of HTTP
GatewayAnswer<std::string> read_token(int status, std::string_view body);
GatewayAnswer<GrantedLease> read_lease(int status, std::string_view body);
/// @param reads of the transaction: so many entries must be there
GatewayAnswer<EtcdOutcome> read_outcome(int status,
                                        std::string_view body,
                                        size_t reads);
/// The watched key has changed, by what the watch has sent so far.
bool has_change(std::string_view lines);

}  // namespace launcher
