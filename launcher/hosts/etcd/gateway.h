#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// Requests to etcd's HTTP gateway and its answers: JSON of the v3 API, with
// keys and values in base64 and 64 bit numbers as text. Pure.
namespace launcher {

/// Most bytes of an answer.
inline constexpr size_t kLongestGatewayAnswer = 256 * 1024;
/// Most bytes of a value.
inline constexpr size_t kLongestEtcdValue = 16 * 1024;

std::string to_base64(std::string_view bytes);
/// Returns nothing if to_base64() does not make such a text.
std::optional<std::string> from_base64(std::string_view text);

/// A POST request.
struct GatewayRequest {
  std::string path;
  std::string body;
};

/// Value of a key. Its revision changes with every write of the key.
struct EtcdEntry {
  std::string value;
  int64_t revision = 0;
};

/// Writes if all keys have the expected revisions. Reads if a key has another
/// revision, or if there is nothing to write.
struct EtcdTransaction {
  struct Expectation {
    std::string key;
    int64_t revision = 0;  ///< 0: the key does not exist
  };
  struct Write {
    std::string key;
    std::string value;
    int64_t lease = 0;  ///< etcd removes the key when the lease ends
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
/// Asks for a line whenever the key changes at that revision or later.
GatewayRequest watch_request(const std::string& key, int64_t from_revision);

/// Reason for a failed request.
struct GatewayError {
  enum class Kind {
    passing,      ///< etcd cannot answer now
    refused,      ///< etcd refuses the request as it is
    old_token,    ///< the request needs a new token
    certificate,  ///< etcd refuses a common name in a certificate with a
                  ///< password
    stranger      ///< the server is no etcd
  };
  Kind kind = Kind::stranger;
  std::string text{};
};
template <typename Answer>
using GatewayAnswer = std::variant<Answer, GatewayError>;

struct GrantedLease {
  int64_t id = 0;
  std::chrono::seconds time{0};  ///< time left; 0: there is no such lease
};
struct EtcdOutcome {
  bool is_done = false;  ///< all keys had the expected revisions
  int64_t revision = 0;  ///< of etcd, and of the written keys
  std::vector<std::optional<EtcdEntry>> entries{};  ///< read entries
};

/// @param status  HTTP status
GatewayAnswer<std::string> read_token(int status, std::string_view body);
GatewayAnswer<GrantedLease> read_lease(int status, std::string_view body);
/// @param reads  number of entries that the transaction reads
GatewayAnswer<EtcdOutcome> read_outcome(int status,
                                        std::string_view body,
                                        size_t reads);
/// Whether the watched key has changed, according to the lines so far.
bool has_change(std::string_view lines);

}  // namespace launcher
