#include "ddp/base/cluster/host_list.h"

#include <algorithm>
#include <stdexcept>

#include "ddp/base/text/number.h"

namespace ddp::detail {
namespace {

constexpr size_t kLongestName = 255;
constexpr size_t kMostDigits = 9;  // fit into an int

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_of_host_name(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         c == '-' || c == '.' || c == '_';
}

/// Parses a text from left to right. A parse error is an exception that shows
/// the text.
class ListReader {
 public:
  ListReader(std::string_view text, const char* expected)
      : text_(text), expected_(expected) {}

  bool at_end() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !at_end() && text_[at_] == c; }

  bool take(char c) {
    const bool is_there = next_is(c);
    at_ += is_there ? 1 : 0;
    return is_there;
  }
  void require_next(char c) { require(take(c)); }
  void require(bool is_right) const {
    if (!is_right) {
      fail(expected_);
    }
  }

  template <typename Belongs>
  std::string_view take_while(Belongs belongs) {
    const size_t begin = at_;
    while (!at_end() && belongs(text_[at_])) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  /// Reads digits, including leading zeros.
  std::string_view digits() {
    const std::string_view text = take_while(is_digit);
    require(!text.empty() && text.size() <= kMostDigits);
    return text;
  }

  void require_at_most_hosts(size_t count) const {
    if (count > kMostHosts) {
      fail("a list of at most " + std::to_string(kMostHosts) + " hosts");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    constexpr size_t kMostShown = 80;
    std::string shown(text_.substr(0, kMostShown));
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < ' '; }, '?');
    throw std::invalid_argument("expected " + expected + ", but got \"" +
                                shown +
                                (text_.size() > kMostShown ? "\"..." : "\""));
  }

  std::string_view text_;
  const char* expected_;
  size_t at_ = 0;
};

/// Converts the result of digits().
int to_int(std::string_view digits) {
  return parse_number<int>(digits).value();
}

std::string padded(int value, size_t width) {
  const std::string text = std::to_string(value);
  return std::string(width - std::min(width, text.size()), '0') + text;
}

/// Reads the text between [ and ]: "1-3,07".
std::vector<std::string> read_numbers(ListReader& reader) {
  std::vector<std::string> numbers;
  do {
    const std::string_view first = reader.digits();
    const std::string_view last = reader.take('-') ? reader.digits() : first;
    const int least = to_int(first);
    const int most = to_int(last);
    reader.require(least <= most);
    reader.require_at_most_hosts(numbers.size() +
                                 static_cast<size_t>(most - least) + 1);
    for (int value = least; value <= most; ++value) {
      numbers.push_back(padded(value, first.size()));
    }
  } while (reader.take(','));
  reader.require_next(']');
  return numbers;
}

/// Returns each name joined with each end.
std::vector<std::string> joined_with(const std::vector<std::string>& names,
                                     const std::vector<std::string>& ends) {
  std::vector<std::string> result;
  result.reserve(names.size() * ends.size());
  for (const std::string& name : names) {
    for (const std::string& end : ends) {
      result.push_back(name + end);
    }
  }
  return result;
}

/// Reads one item: "gpu-[01-02]x[0-1]".
std::vector<std::string> read_names(ListReader& reader) {
  std::vector<std::string> names{""};
  while (!reader.at_end() && !reader.next_is(',')) {
    std::vector<std::string> ends;
    if (reader.take('[')) {
      ends = read_numbers(reader);
    } else {
      ends.emplace_back(reader.take_while(is_of_host_name));
      reader.require(!ends.front().empty());
    }
    reader.require_at_most_hosts(names.size() * ends.size());
    names = joined_with(names, ends);
    reader.require(names.back().size() <= kLongestName);
  }
  reader.require(!names.front().empty());
  return names;
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view text) {
  ListReader reader(text, "a list of hosts such as node[1-4,7],login1");
  std::vector<std::string> hosts;
  do {
    const auto names = read_names(reader);
    reader.require_at_most_hosts(hosts.size() + names.size());
    hosts.insert(hosts.end(), names.begin(), names.end());
  } while (reader.take(','));
  return hosts;
}

std::vector<int> expand_counts(std::string_view text) {
  ListReader reader(text, "numbers for each host such as 4(x2),1");
  std::vector<int> counts;
  do {
    const int count = to_int(reader.digits());
    size_t times = 1;
    if (reader.take('(')) {
      reader.require_next('x');
      times = static_cast<size_t>(to_int(reader.digits()));
      reader.require_next(')');
    }
    reader.require_at_most_hosts(counts.size() + times);
    counts.insert(counts.end(), times, count);
  } while (reader.take(','));
  reader.require(reader.at_end());
  return counts;
}

}  // namespace ddp::detail
