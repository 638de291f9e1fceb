#include "launcher/workers/progress/timer_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace launcher {
namespace {

using TimerJson = nlohmann::json;

// Limit for all processes; a real process has one or two.
constexpr size_t kMostTimers = 100'000;
constexpr double kMostSeconds = 10.0 * 366 * 24 * 3600;

}  // namespace

std::optional<TimerRequest> parse_timer_request(std::string_view line) {
  const TimerJson json =
      TimerJson::parse(line.begin(), line.end(), nullptr, false);
  const auto is = [&json](const char* name, auto check) {
    return json.contains(name) && (json[name].*check)();
  };
  if (!json.is_object() || !is("pid", &TimerJson::is_number_integer) ||
      !is("scope_id", &TimerJson::is_string) ||
      !is("expiration_time", &TimerJson::is_number) ||
      !is("signal", &TimerJson::is_number_integer)) {
    return std::nullopt;
  }
  const auto pid = json["pid"].get<int64_t>();
  const auto signal = json["signal"].get<int64_t>();
  constexpr int64_t kMostPid = 1 << 30;
  constexpr int64_t kMostSignal = 64;
  if (pid <= 0 || pid > kMostPid || signal > kMostSignal) {
    return std::nullopt;
  }
  return TimerRequest{static_cast<pid_t>(pid),
                      json["scope_id"].get<std::string>(),
                      json["expiration_time"].get<double>(),
                      static_cast<int>(std::max<int64_t>(signal, 0))};
}

void TimerTable::apply(const TimerRequest& request,
                       Time now,
                       double wall_time) {
  const auto key = std::pair(request.pid, request.scope);
  if (request.expiration < 0) {
    timers_.erase(key);
    return;
  }
  if (timers_.size() >= kMostTimers && timers_.count(key) == 0) {
    return;
  }
  // Convert to the steady clock, so that later changes of the wall clock do no
  // harm.
  const double seconds =
      std::clamp(request.expiration - wall_time, 0.0, kMostSeconds);
  const auto delay = std::chrono::duration_cast<Time::duration>(
      std::chrono::duration<double>(seconds));
  timers_[key] = {now + delay, now, request.signal};
}

std::vector<TimerTable::Expired> TimerTable::remove_expired(Time now) {
  std::map<pid_t, std::pair<Entry, std::string>> chosen;
  for (const auto& [key, entry] : timers_) {
    if (entry.deadline > now) {
      continue;
    }
    const auto [found, is_new] =
        chosen.try_emplace(key.first, entry, key.second);
    const Entry& known = found->second.first;
    const bool is_better = std::pair(entry.signal == 0, entry.deadline) <
                           std::pair(known.signal == 0, known.deadline);
    if (!is_new && is_better) {
      found->second = {entry, key.second};
    }
  }
  std::erase_if(timers_, [&chosen](const auto& timer) {
    return chosen.count(timer.first.first) > 0;
  });
  std::vector<Expired> result;
  for (const auto& [pid, timer] : chosen) {
    const auto& [entry, scope] = timer;
    result.push_back({pid,
                      scope,
                      entry.signal,
                      std::chrono::duration_cast<std::chrono::milliseconds>(
                          now - entry.since)});
  }
  return result;
}

std::optional<TimerTable::Time> TimerTable::next() const {
  const auto first = std::min_element(
      timers_.begin(), timers_.end(), [](const auto& left, const auto& right) {
        return left.second.deadline < right.second.deadline;
      });
  return first != timers_.end() ? std::optional(first->second.deadline)
                                : std::nullopt;
}

}  // namespace launcher
