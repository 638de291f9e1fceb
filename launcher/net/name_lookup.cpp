#include "launcher/net/name_lookup.h"

#include <netdb.h>

#include <algorithm>
#include <cctype>
#include <system_error>
#include <thread>
#include <utility>

#include "ddp/base/block_signals.h"
#include "launcher/base/error.h"

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

Resolved ask_name_service(const std::string& host, int port) {
  return ddp::detail::resolve(host, port);
}

NameLookup::NameLookup(Endpoint endpoint,
                       std::chrono::milliseconds between,
                       NameService ask)
    : endpoint_(std::move(endpoint)), between_(between), ask_(std::move(ask)) {}

const std::optional<Resolved>& NameLookup::poll(Time now) {
  if (is_address(endpoint_.host)) {
    answer_ = ask_name_service(endpoint_.host, endpoint_.port);
  } else if (!query_.valid()) {
    if (now >= next_query_) {
      start();
    }
  } else if (query_.wait_for(std::chrono::seconds(0)) ==
             std::future_status::ready) {
    const Resolved answer = query_.get();
    if (!answer.addresses.empty() || !answer_ || answer_->addresses.empty()) {
      answer_ = answer;  // addresses outlive a failure of the name service
    }
    next_query_ = now + between_;
  }
  return answer_;
}

void NameLookup::start() {
  if (!can_be_host_name(endpoint_.host)) {
    throw LaunchError(kExitFailure,
                      "host name " + endpoint_.host +
                          " cannot be resolved; correct it, or give an IP "
                          "address");
  }
  std::packaged_task<Resolved()> task([ask = ask_, endpoint = endpoint_] {
    return ask(endpoint.host, endpoint.port);
  });
  std::future<Resolved> query = task.get_future();
  try {
    const ddp::detail::BlockedSignals blocked;
    std::thread(std::move(task)).detach();
  } catch (const std::system_error& error) {
    throw LaunchError(kExitFailure,
                      std::string("cannot start a thread (") + error.what() +
                          "); check ulimit -a");
  }
  query_ = std::move(query);
}

std::string NameLookup::problem() const {
  if (!answer_) {
    return "the name service has not said yet which address host " +
           endpoint_.host + " has";
  }
  return "host name " + endpoint_.host + " cannot be resolved (" +
         ::gai_strerror(answer_->error == 0 ? EAI_NODATA : answer_->error) +
         ")";
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

}  // namespace launcher
