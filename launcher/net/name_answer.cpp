#include "launcher/net/name_answer.h"

#include <netdb.h>

#include <algorithm>
#include <cctype>

#include "ddp/base/text/number.h"
#include "ddp/base/text/record.h"
#include "launcher/base/error.h"
#include "launcher/net/address.h"

namespace launcher {
namespace {

constexpr size_t kLongestName = 253;
constexpr size_t kLongestLabel = 63;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Allows bytes of other alphabets, which the name service judges.
bool can_be_in_label(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || std::isalnum(byte) != 0 || c == '-' || c == '_';
}

bool can_be_label(const std::string& label) {
  return !label.empty() && label.size() <= kLongestLabel &&
         std::all_of(label.begin(), label.end(), can_be_in_label);
}

std::string lower_ascii(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return text;
}

}  // namespace

NameAnswer ask_name_service(const std::string& host) {
  const ddp::detail::Resolved found = ddp::detail::resolve(host, 0);
  NameAnswer answer{.error = found.error};
  for (const SocketAddress& address : found.addresses) {
    answer.addresses.push_back(numeric_host(address));
  }
  return answer;
}

std::string encode(const NameAnswer& answer) {
  std::vector<std::string> fields{std::to_string(answer.error)};
  fields.insert(fields.end(), answer.addresses.begin(), answer.addresses.end());
  return ddp::detail::join_fields(fields);
}

NameAnswer decode_answer(const std::string& text) {
  NameAnswer answer;
  answer.error = EAI_FAIL;
  const auto fields = ddp::detail::split_fields(text);
  if (!fields || fields->empty()) {
    return answer;
  }
  answer.error =
      ddp::detail::parse_number<int>(fields->front()).value_or(EAI_FAIL);
  answer.addresses.assign(fields->begin() + 1, fields->end());
  return answer;
}

NameVerdict judge(const std::string& host,
                  const NameAnswer& answer,
                  bool is_awaited) {
  if (!answer.addresses.empty()) {
    return NameVerdict::found;
  }
  switch (answer.error) {
    case 0:
    case EAI_NONAME:
    case EAI_NODATA:
    case EAI_ADDRFAMILY:
    case EAI_AGAIN:
    case EAI_FAIL:
      return is_awaited && can_be_host_name(host) ? NameVerdict::not_yet
                                                  : NameVerdict::never;
    default:
      return NameVerdict::never;  // an error of this machine, such as no memory
  }
}

bool can_be_host_name(const std::string& host) {
  const bool ends_in_root = !host.empty() && host.back() == '.';
  const std::string name = host.substr(0, host.size() - (ends_in_root ? 1 : 0));
  if (name.size() > kLongestName) {
    return false;
  }
  std::string label;
  for (size_t begin = 0; begin <= name.size(); begin += label.size() + 1) {
    label = name.substr(begin, name.find('.', begin) - begin);
    if (!can_be_label(label)) {
      return false;
    }
  }
  return !std::all_of(label.begin(), label.end(), is_digit) &&
         lower_ascii(label) != "invalid";
}

std::string problem_text(const std::string& host, const NameAnswer& answer) {
  return "host name " + host + " cannot be resolved (" +
         ::gai_strerror(answer.error == 0 ? EAI_NODATA : answer.error) + ")";
}

}  // namespace launcher
