#include "ddp/job/detail/departure.h"

#include <algorithm>
#include <sstream>

namespace ddp::detail {
namespace {

constexpr size_t kLongestText = 1000;

/// Shortens the text and replaces its line ends, because a line end separates
/// two messages.
std::string on_one_line(std::string text) {
  if (text.size() > kLongestText) {
    text.resize(kLongestText);
    text += "...";
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string count_passes(int64_t count) {
  return std::to_string(count) +
         (count == 1 ? " backward pass" : " backward passes");
}

std::string how_it_left(const Departure& departure) {
  const std::string rank = "rank " + std::to_string(departure.rank);
  switch (departure.how) {
    case Departure::How::destroyed:
      return rank + " has left by ddp::destroy_process_group()";
    case Departure::How::threw:
      return rank + " has left because of an exception";
    default:
      return "the process of " + rank +
             " has ended without ddp::destroy_process_group()";
  }
}

}  // namespace

std::string to_line(const Departure& departure) {
  std::ostringstream line;
  line << departure.rank << ' ' << static_cast<int>(departure.how) << ' '
       << departure.passes << ' ' << departure.started.size();
  for (const auto& [group, count] : departure.started) {
    line << ' ' << group << ' ' << count;
  }
  line << ' ' << on_one_line(departure.text);
  return line.str();
}

std::optional<Departure> departure_of_line(const std::string& line) {
  std::istringstream in(line);
  Departure departure;
  int how = 0;
  size_t groups = 0;
  in >> departure.rank >> how >> departure.passes >> groups;
  for (size_t i = 0; i < groups && in; ++i) {
    std::string group;
    uint64_t count = 0;
    in >> group >> count;
    departure.started[group] = count;
  }
  if (!in || how < 0 || how > static_cast<int>(Departure::How::vanished)) {
    return std::nullopt;
  }
  departure.how = static_cast<Departure::How>(how);
  in.get();  // skip the space
  std::getline(in, departure.text);
  return departure;
}

bool misses_collective(const Departure& departure,
                       const std::string& group,
                       uint64_t number) {
  const auto started = departure.started.find(group);
  return started == departure.started.end() || started->second < number;
}

bool started_more(const Departure& departure,
                  const std::string& group,
                  uint64_t number) {
  const auto started = departure.started.find(group);
  return started != departure.started.end() && started->second > number;
}

std::string describe(const Departure& departure, int64_t passes) {
  std::string text = how_it_left(departure);
  if (departure.passes >= 0) {
    text += " after " + count_passes(departure.passes);
  }
  text += "; this rank has begun " + count_passes(passes);
  return departure.text.empty() ? text : text + "; it says: " + departure.text;
}

}  // namespace ddp::detail
