#include "launcher/options/rendezvous_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

#include "ddp/base/text/nearest.h"
#include "launcher/base/overloaded.h"
#include "launcher/options/values.h"

namespace launcher {
namespace {

/// Keys of ddprun, and keys that torchrun 2.11's backends static and c10d read.
constexpr std::array<const char*, 13> kSettings{"meeting_port",
                                                "timeout",
                                                "read_timeout",
                                                "join_timeout",
                                                "last_call_timeout",
                                                "close_timeout",
                                                "heartbeat_timeout",
                                                "keep_alive_interval",
                                                "keep_alive_max_attempt",
                                                "is_host",
                                                "store_type",
                                                "rank",
                                                "local_addr"};

/// Removes quotes around the whole text, which a shell would have removed.
std::string_view unquoted(std::string_view text) {
  const bool is_quoted = text.size() > 1 && text.front() == text.back() &&
                         (text.front() == '\'' || text.front() == '"');
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

}  // namespace

const Endpoint* given_store(const RendezvousConfig& config) {
  const auto* known = std::get_if<CoordinatedConfig>(&config);
  return known == nullptr ? &std::get<UncoordinatedConfig>(config).master
         : known->store   ? &*known->store
                          : nullptr;
}

int host_count(const RendezvousConfig& config) {
  return std::visit(Overloaded{[](const UncoordinatedConfig& known) {
                                 return known.host_count;
                               },
                               [](const CoordinatedConfig& known) {
                                 return known.terms.most_hosts;
                               }},
                    config);
}

std::optional<int> host_rank(const RendezvousConfig& config) {
  return std::visit(Overloaded{[](const UncoordinatedConfig& known) {
                                 return std::optional(known.host_rank);
                               },
                               [](const CoordinatedConfig& known) {
                                 return known.wanted_rank;
                               }},
                    config);
}

const std::vector<std::string>& backend_names() {
  static const std::vector<std::string> names{"static", "c10d"};
  return names;
}

std::map<std::string, std::string> parse_settings(std::string_view text) {
  std::map<std::string, std::string> settings;
  text = unquoted(stripped(text));
  if (stripped(text).empty()) {
    return settings;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const size_t equals = std::min(item.find('='), item.size());
    const auto key = stripped(item.substr(0, equals));
    const auto value = stripped(item.substr(std::min(equals + 1, item.size())));
    if (key.empty() || value.empty()) {
      throw std::invalid_argument(
          "expected key=value pairs separated by commas, but got \"" +
          std::string(text) + "\"");
    }
    settings.insert_or_assign(std::string(key), std::string(value));
    begin = end + 1;
  }
  return settings;
}

std::string warning_about_setting(const std::string& key) {
  const std::vector<std::string> known(kSettings.begin(), kSettings.end());
  return std::find(known.begin(), known.end(), key) != known.end()
             ? ""
             : "--rdzv-conf: nobody reads the key " + key +
                   ddp::detail::did_you_mean(key, known);
}

bool parse_truth(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  const std::string known = parse_choice(
      text, {"1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"});
  return known == "1" || known[0] == 't' || known[0] == 'y';
}

std::string parse_host(std::string_view text) {
  text = stripped(text);
  constexpr size_t kLongestName = 253;
  const bool is_ipv6 = std::count(text.begin(), text.end(), ':') > 1;
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [is_ipv6](unsigned char c) {
        return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' ||
               (is_ipv6 && (c == ':' || c == '%'));
      });
  if (!is_plain || text.size() > kLongestName) {
    throw std::invalid_argument(
        "expected the name or address of this host, without a port, but got "
        "\"" +
        std::string(text) + "\"");
  }
  return std::string(text);
}

}  // namespace launcher
