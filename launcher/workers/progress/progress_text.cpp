#include "launcher/workers/progress/progress_text.h"

#include <algorithm>

#include "ddp/base/text/number.h"

namespace launcher {
namespace {

constexpr int64_t kMost = int64_t{1} << 52;
constexpr int64_t kMostTimes = 1000;
constexpr int64_t kMostSeconds = 366 * 24 * 3600;
constexpr size_t kMostShownBytes = 200;

/// Parses a number of digits only, at most `most`.
std::optional<int64_t> number_of(std::string_view text, int64_t most) {
  const auto number = ddp::detail::parse_number<int64_t>(text);
  return number && *number >= 0 && *number <= most ? number : std::nullopt;
}

std::optional<Progress::Limit> limit_of(std::string_view text) {
  const bool is_relative = !text.empty() && text.back() == 'x';
  const auto number =
      is_relative ? number_of(text.substr(0, text.size() - 1), kMostTimes)
                  : number_of(text, kMostSeconds);
  if (!number || (is_relative && *number == 0)) {
    return std::nullopt;
  }
  Progress::Limit limit;
  if (is_relative) {
    limit.times = static_cast<int>(*number);
  } else {
    limit.time = std::chrono::seconds(*number);
  }
  return limit;
}

/// Parses one word; returns false for a word to show to the user.
bool take_word(std::string_view word, Progress& progress) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) {
    return false;
  }
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = word.substr(equals + 1);
  const auto take_number = [&](auto& target, int64_t most) {
    const auto number = number_of(value, most);
    if (number) {
      target = static_cast<std::decay_t<decltype(target)>>(*number);
    }
    return number.has_value();
  };
  if (name == "pid") {
    return take_number(progress.pid, 1 << 30);
  }
  if (name == "pass") {
    return take_number(progress.passes, kMost);
  }
  if (name == "collectives") {
    return take_number(progress.collectives, kMost);
  }
  if (name == "beat") {
    return true;  // only the change of the file matters
  }
  if (name == "waits") {
    return take_number(progress.waits, 1);
  }
  if (name == "limit") {
    progress.limit = limit_of(value);
    return value.empty() || progress.limit.has_value();
  }
  return false;
}

std::string printable(std::string_view bytes) {
  std::string text(bytes);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

Progress parse_progress(std::string_view line) {
  constexpr std::string_view kBlank(" \t\r\0", 4);
  line = line.substr(0, kMostProgressBytes);
  line = line.substr(0, line.find('\n'));
  Progress progress;
  for (;;) {
    const size_t start = line.find_first_not_of(kBlank);
    if (start == std::string_view::npos) {
      break;
    }
    line.remove_prefix(start);
    const std::string word =
        printable(line.substr(0, line.find_first_of(kBlank)));
    line.remove_prefix(word.size());
    if (!take_word(word, progress) && progress.text.size() < kMostShownBytes) {
      progress.text +=
          (progress.text.empty() ? "" : " ") + word.substr(0, kMostShownBytes);
    }
  }
  return progress;
}

std::string describe(const Progress& progress) {
  std::string text = progress.text;
  const auto add = [&text](const std::string& part) {
    text += (text.empty() ? "" : ", ") + part;
  };
  if (progress.passes) {
    add(*progress.passes == 0
            ? "before the end of a backward pass"
            : "after backward pass " + std::to_string(*progress.passes));
  }
  if (progress.collectives && *progress.collectives > 0) {
    add((progress.waits ? "in collective " : "after collective ") +
        std::to_string(*progress.collectives));
  }
  return text;
}

}  // namespace launcher
