#include "launcher/options/values.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "ddp/base/cluster/env_integer.h"
#include "ddp/base/text/number.h"
#include "launcher/base/exit_status.h"

namespace launcher {
namespace {

constexpr int kMaxPort = 65535;

[[noreturn]] void fail(const std::string& expected, std::string_view got) {
  throw std::invalid_argument("expected " + expected + ", but got \"" +
                              std::string(got) + "\"");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(stripped(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  return ddp::detail::parse_number<T>(stripped(text));
}

/// Parses seconds from 0 to a year.
std::optional<double> to_seconds(std::string_view text) {
  constexpr double kYear = 365.0 * 24 * 3600;
  const auto seconds = parse_number<double>(text);
  return seconds && *seconds >= 0 && *seconds <= kYear ? seconds : std::nullopt;
}

std::optional<StreamSet> to_stream_set(std::string_view text) {
  text = stripped(text);
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') {
    return std::nullopt;
  }
  const int bits = text[0] - '0';
  return StreamSet{.out = (bits & 1) != 0, .err = (bits & 2) != 0};
}

}  // namespace

StreamSet StreamMap::at(int local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? all_ : found->second;
}

bool StreamMap::empty() const {
  const auto none = [](const StreamSet& set) { return !set.out && !set.err; };
  return none(all_) &&
         std::all_of(by_rank_.begin(), by_rank_.end(), [&](const auto& entry) {
           return none(entry.second);
         });
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

int parse_integer(std::string_view text, int least, int most) {
  const auto value = parse_number<int>(text);
  if (!value || *value < least || *value > most) {
    fail("an integer from " + std::to_string(least) + " to " +
             std::to_string(most),
         text);
  }
  return *value;
}

bool parse_switch(std::string_view text) {
  const std::string_view number = stripped(text);
  const bool has_plus =
      number.size() > 1 && number[0] == '+' && number[1] != '-';
  const auto value = parse_number<int>(has_plus ? number.substr(1) : number);
  if (!value) {
    fail("0 or 1", text);
  }
  return *value != 0;
}

WorkerCount parse_worker_count(std::string_view text) {
  using Kind = WorkerCount::Kind;
  const std::string_view name = stripped(text);
  if (name == "auto") {
    return {Kind::automatic, 0};
  }
  if (name == "gpu") {
    return {Kind::gpu, 0};
  }
  if (name == "cpu") {
    return {Kind::cpu, 0};
  }
  const auto value = parse_number<int>(text);
  if (!value || *value < 1 || *value > ddp::detail::kMostRanks) {
    fail("a number of workers above 0, auto, gpu or cpu", text);
  }
  return {Kind::number, *value};
}

HostRange parse_host_range(std::string_view text) {
  const auto parts = split(text, ':');
  const auto least = parse_number<int>(parts.front());
  const auto most = parse_number<int>(parts.back());
  if (parts.size() > 2 || !least || !most || *least < 1 || *most < *least ||
      *most > ddp::detail::kMostRanks) {
    fail("a number of hosts above 0, or a range MIN:MAX", text);
  }
  return {*least, *most};
}

Endpoint parse_endpoint(std::string_view text) {
  const std::string expected = "host, host:port or [ipv6]:port";
  text = stripped(text);
  std::string_view host = text;
  std::string_view port;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos ||
        (close + 1 < text.size() && text[close + 1] != ':')) {
      fail(expected, text);
    }
    host = text.substr(1, close - 1);
    port = close + 1 < text.size() ? text.substr(close + 2) : "0";
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':') + 1);
  } else {
    port = "0";
  }
  const auto number = parse_number<int>(port);
  if (host.empty() || !number || *number < 0 || *number > kMaxPort ||
      host.find_first_of(" \t/[],") != std::string_view::npos) {
    fail(expected, text);
  }
  return {std::string(host), *number};
}

StreamMap parse_stream_map(std::string_view text) {
  const std::string expected =
      "0 (none), 1 (stdout), 2 (stderr), 3 (both), or a map of local ranks "
      "such as 0:3,1:0";
  if (const auto all = to_stream_set(text)) {
    return StreamMap(*all);
  }
  std::map<int, StreamSet> by_rank;
  for (const auto item : split(text, ',')) {
    const size_t colon = item.find(':');
    if (colon == std::string_view::npos) {
      fail(expected, text);
    }
    const auto rank = parse_number<int>(item.substr(0, colon));
    const auto set = to_stream_set(item.substr(colon + 1));
    if (!rank || *rank < 0 || !set || !by_rank.emplace(*rank, *set).second) {
      fail(expected, text);
    }
  }
  return StreamMap(std::move(by_rank));
}

std::vector<std::string> parse_list(std::string_view text) {
  std::vector<std::string> items;
  for (const auto item : split(text, ',')) {
    if (item.empty() ||
        std::find(items.begin(), items.end(), item) != items.end()) {
      fail("items separated by commas, each once", text);
    }
    items.emplace_back(item);
  }
  return items;
}

std::vector<std::string> parse_texts(std::string_view text) {
  if (text.empty()) {
    return {};
  }
  std::vector<std::string> texts(1);
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',') {
      texts.back() += text[at];
    } else if (text.substr(at + 1, 1) == ",") {
      texts.back() += text[++at];
    } else {
      texts.emplace_back();
    }
  }
  if (std::find(texts.begin(), texts.end(), "") != texts.end()) {
    fail("texts separated by commas, none empty (,, is a comma in a text)",
         text);
  }
  return texts;
}

std::vector<int> parse_ranks(std::string_view text) {
  std::vector<int> ranks;
  for (const auto& item : parse_list(text)) {
    const auto rank = parse_number<int>(item);
    if (!rank || *rank < 0) {
      fail("local ranks separated by commas, such as 0,2", text);
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

std::chrono::milliseconds parse_seconds(std::string_view text) {
  const auto seconds = to_seconds(text);
  if (!seconds) {
    fail("seconds from 0 to a year", text);
  }
  return std::chrono::milliseconds(std::llround(*seconds * 1000));
}

std::chrono::duration<double> parse_interval(std::string_view text) {
  const auto seconds = to_seconds(text);
  if (!seconds || *seconds == 0) {
    fail("seconds above 0, at most a year", text);
  }
  return std::chrono::duration<double>(*seconds);
}

std::string parse_choice(std::string_view text,
                         const std::vector<std::string>& choices) {
  std::string expected;
  for (const std::string& choice : choices) {
    if (stripped(text) == choice) {
      return choice;
    }
    expected += (expected.empty() ? "" : ", ") + choice;
  }
  fail("one of " + expected, text);
}

const std::vector<std::string>& output_names() {
  static const std::vector<std::string> names{"lines", "inherit"};
  return names;
}

Output parse_output(std::string_view text) {
  return parse_choice(text, output_names()) == "lines" ? Output::lines
                                                       : Output::inherit;
}

std::vector<int> parse_signals(std::string_view text) {
  std::vector<int> signals;
  for (const auto& name : parse_list(text)) {
    const int number = signal_number(name);
    if (number == 0 || number == SIGKILL || number == SIGSTOP ||
        number == SIGCHLD) {
      fail("names of signals that can be handled, such as SIGTERM,SIGINT",
           text);
    }
    signals.push_back(number);
  }
  return signals;
}

const std::vector<std::string>& binding_names() {
  static const std::vector<std::string> names{
      "node", "socket", "exclusive", "core-complex"};
  return names;
}

Binding parse_binding(std::string_view text) {
  const std::map<std::string, Binding> bindings{
      {"node", Binding::node},
      {"socket", Binding::socket},
      {"exclusive", Binding::exclusive},
      {"core-complex", Binding::core_complex}};
  return bindings.at(parse_choice(text, binding_names()));
}

std::vector<int> parse_exit_codes(std::string_view text) {
  std::vector<int> codes;
  for (const auto& item : parse_list(text)) {
    codes.push_back(parse_exit_code(item));
  }
  return codes;
}

int parse_exit_code(std::string_view text) {
  return parse_integer(text, 1, 255);
}

Preemption parse_preemption(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto signals = parse_signals(text.substr(0, colon));
  Preemption preemption;
  preemption.signal = signals.front();
  const bool is_job_control =
      preemption.signal == SIGTSTP || preemption.signal == SIGCONT;
  if (signals.size() > 1 || is_job_control) {
    throw std::invalid_argument(
        "expected one signal that stops and continues nothing, such as "
        "USR1:60, but got \"" +
        std::string(text) + "\"");
  }
  if (colon < text.size()) {
    preemption.time = parse_seconds(text.substr(colon + 1));
  }
  return preemption;
}

}  // namespace launcher
