#include "test/fake_gpu/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "test/fake_gpu/log.h"

namespace fake_gpu {
namespace {

constexpr int kMaxDevices = 16;

[[noreturn]] void refuse(const std::string& name,
                         std::string_view value,
                         const std::string& expected) {
  throw std::invalid_argument("Expected " + name + " to be " + expected +
                              ", but got " + std::string(value));
}

template <typename Number>
Number number_of(const std::string& name, std::string_view text) {
  Number value{};
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) {
    refuse(name, text, "a number");
  }
  return value;
}

template <typename Number>
void read_number(const Environment& environment,
                 const std::string& name,
                 Number* value) {
  if (const char* text = environment(name.c_str())) {
    *value = number_of<Number>(name, text);
  }
}

Mode mode_of(const std::string& name, std::string_view text) {
  if (text == "eager") {
    return Mode::eager;
  }
  if (text == "lazy") {
    return Mode::lazy;
  }
  if (text == "mixed") {
    return Mode::mixed;
  }
  if (text == "priority") {
    return Mode::priority;
  }
  refuse(name, text, "eager, lazy, mixed or priority");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(end + 1);
  }
}

Fault fault_of(const std::string& name, std::string_view text) {
  const auto parts = split(text, ':');
  const bool joins = parts[0] != "never_join";
  Fault fault;
  if (parts[0] == "die") {
    fault.kind = Fault::Kind::die;
  } else if (parts[0] == "stall") {
    fault.kind = Fault::Kind::stall;
  } else if (parts[0] == "error") {
    fault.kind = Fault::Kind::error;
  } else if (!joins) {
    fault.kind = Fault::Kind::never_join;
  }
  if (fault.kind == Fault::Kind::none || parts.size() != (joins ? 3U : 2U)) {
    refuse(name,
           text,
           "die:RANK:CALL, stall:RANK:CALL, error:RANK:CALL or "
           "never_join:RANK");
  }
  fault.rank = number_of<int>(name, parts[1]);
  if (joins) {
    fault.call = number_of<int64_t>(name, parts[2]);
  }
  return fault;
}

/// Returns the number of devices that CUDA_VISIBLE_DEVICES leaves visible. Only
/// the number matters here.
int visible_devices(const Environment& environment, int devices) {
  const char* visible = environment("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    return devices;
  }
  const std::string_view list(visible);
  const auto listed =
      list.empty() ? 0 : 1 + std::count(list.begin(), list.end(), ',');
  return std::min(devices, static_cast<int>(listed));
}

}  // namespace

Settings parse_settings(const Environment& environment) {
  Settings result;
  if (const char* text = environment("FAKE_GPU_MODE")) {
    result.mode = mode_of("FAKE_GPU_MODE", text);
  }
  read_number(environment, "FAKE_GPU_SEED", &result.seed);
  read_number(environment, "FAKE_GPU_DEVICES", &result.devices);
  if (result.devices < 0 || result.devices > kMaxDevices) {
    refuse("FAKE_GPU_DEVICES", std::to_string(result.devices), "0 to 16");
  }
  result.devices = visible_devices(environment, result.devices);
  size_t megabytes = result.memory_bytes >> 20;
  read_number(environment, "FAKE_GPU_MEMORY_MB", &megabytes);
  result.memory_bytes = megabytes << 20;
  int trace = 0;
  read_number(environment, "FAKE_GPU_TRACE", &trace);
  result.trace = trace != 0;
  if (const char* path = environment("FAKE_GPU_COUNTS")) {
    result.counts_file = path;
  }
  read_number(environment, "FAKE_GPU_LOSE_WAIT", &result.lose_wait);
  if (const char* text = environment("FAKE_GPU_FAULT")) {
    result.fault = fault_of("FAKE_GPU_FAULT", text);
  }
  int64_t join_seconds = result.join_timeout.count();
  read_number(environment, "FAKE_GPU_JOIN_SECONDS", &join_seconds);
  result.join_timeout = std::chrono::seconds(join_seconds);
  return result;
}

const Settings& settings() {
  static const Settings* const instance = [] {
    try {
      return new Settings(parse_settings([](const char* name) {
        return static_cast<const char*>(std::getenv(name));
      }));
    } catch (const std::invalid_argument& error) {
      fail(error.what());
    }
  }();
  return *instance;
}

}  // namespace fake_gpu
