#include "ddp/base/cluster/host_list.h"

#include <random>
#include <stdexcept>

#include "test/support/catch.h"

using Catch::Contains;
using ddp::detail::expand_counts;
using ddp::detail::expand_host_list;
using ddp::detail::kMostHosts;
using Hosts = std::vector<std::string>;

namespace {

std::string number_text(int value, size_t width) {
  const std::string text = std::to_string(value);
  return std::string(width - std::min(width, text.size()), '0') + text;
}

/// Returns the short form of prefix + numbers of one width, with ranges for
/// consecutive numbers.
std::string compressed(const std::string& prefix,
                       const std::vector<int>& numbers,
                       size_t width) {
  std::string text = prefix + "[";
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) {
      ++end;
    }
    text += (begin == 0 ? "" : ",") + number_text(numbers[begin], width);
    if (end - begin > 1) {
      text += "-" + number_text(numbers[end - 1], width);
    }
    begin = end;
  }
  return text + "]";
}

/// Returns the error line of a list, or "" if it is valid.
std::string host_list_error(const std::string& text) {
  try {
    expand_host_list(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Slurm's lists of hosts", "[cluster]") {
  CHECK(expand_host_list("node1") == Hosts{"node1"});
  CHECK(expand_host_list("a,b.example.org,c_1") ==
        Hosts{"a", "b.example.org", "c_1"});
  CHECK(expand_host_list("node[1-4,7]") ==
        Hosts{"node1", "node2", "node3", "node4", "node7"});
  CHECK(expand_host_list("node[1-3,07],gpu-[01-02]x[0-1]") ==
        Hosts{"node1",
              "node2",
              "node3",
              "node07",
              "gpu-01x0",
              "gpu-01x1",
              "gpu-02x0",
              "gpu-02x1"});
  // Leading zeros are kept, and a number may have more digits than they give.
  CHECK(expand_host_list("n[008-011]") ==
        Hosts{"n008", "n009", "n010", "n011"});
  CHECK(expand_host_list("n[9-11]") == Hosts{"n9", "n10", "n11"});
  CHECK(expand_host_list("n[98-101]") == Hosts{"n98", "n99", "n100", "n101"});
  CHECK(expand_host_list("[1-2]") == Hosts{"1", "2"});
  CHECK(expand_host_list("r[1-2]n[1-2]-ib,login") ==
        Hosts{"r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib", "login"});
}

TEST_CASE("numbers for each host", "[cluster]") {
  CHECK(expand_counts("4") == std::vector<int>{4});
  CHECK(expand_counts("4(x2),1") == std::vector<int>{4, 4, 1});
  CHECK(expand_counts("1,2(x1),3(x3)") == std::vector<int>{1, 2, 3, 3, 3});
  for (const char* text : {"",
                           "x",
                           "4(",
                           "4(x",
                           "4(x)",
                           "4(x2",
                           "4(2)",
                           "4,",
                           "4,,1",
                           "-1",
                           " 4",
                           "4(x65537)",
                           "4(x999999999)",
                           "4(x40000),4(x40000)",
                           "9999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(expand_counts(text), Contains("expected"));
  }
}

TEST_CASE("a wrong list of hosts is one line", "[cluster]") {
  for (const char* text :
       {"",       ",",      "a,",    ",a",       "a,,b",
        "a[",     "a]",     "a[]",   "a[1",      "a[1-]",
        "a[-1]",  "a[2-1]", "a[1,]", "a[,1]",    "a[1--2]",
        "a[[1]]", "a[1][",  "a[x]",  "a[1-2-3]", "a b",
        "a\nb",   "a[1]\n", "a/b",   "a[1]]",    "a[9999999999]"}) {
    const std::string error = host_list_error(text);
    CAPTURE(text, error);
    CHECK_THAT(error, Contains("expected a list of hosts such as node[1-4,7]"));
    CHECK(error.find('\n') == std::string::npos);
  }
  const std::string error = host_list_error("a[1-2");
  CHECK(error ==
        "expected a list of hosts such as node[1-4,7],login1, but got "
        "\"a[1-2\"");
}

TEST_CASE("a list of hosts has bounds", "[cluster]") {
  CHECK(expand_host_list("n[1-65536]").size() == kMostHosts);
  CHECK(expand_host_list("n[0-255]x[0-255]").back() == "n255x255");
  for (const char* text : {"n[1-65537]",
                           "n[1-999999999]",
                           "n[0-999999999,0-999999999]",
                           "n[1-65536],m",
                           "n[0-255]x[0-256]",
                           "[0-9][0-9][0-9][0-9][0-9]"}) {
    CAPTURE(text);
    CHECK_THAT(host_list_error(text), Contains("at most 65536 hosts"));
  }
  const std::string long_name(256, 'a');
  CHECK(expand_host_list(long_name.substr(1)).size() == 1);
  // The error shows only the beginning of a long text.
  CHECK(host_list_error(long_name).size() < 200);
}

TEST_CASE("what is written short is expanded to what it was", "[cluster]") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const size_t width = 1 + random() % 6;
    const std::string prefix = random() % 2 == 0 ? "node" : "gpu-a";
    std::vector<int> numbers;
    Hosts hosts;
    int limit = 1;
    for (size_t digit = 0; digit < width; ++digit) {
      limit *= 10;
    }
    for (int value = static_cast<int>(random() % 10);
         value < limit && numbers.size() < 50;
         value += random() % 3 == 0 ? 1 + static_cast<int>(random() % 20) : 1) {
      numbers.push_back(value);
      hosts.push_back(prefix + number_text(value, width));
    }
    const std::string text = compressed(prefix, numbers, width);
    CAPTURE(text);
    CHECK(expand_host_list(text) == hosts);
  }
}

TEST_CASE("any text is a list or an error", "[cluster]") {
  std::mt19937 random(11);
  const std::string alphabet = "ab019[]-,.x() \n";
  size_t lists = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::string text;
    for (size_t length = random() % 12; length > 0; --length) {
      text += alphabet[random() % alphabet.size()];
    }
    CAPTURE(text);
    try {
      const Hosts hosts = expand_host_list(text);
      ++lists;
      CHECK((!hosts.empty() && hosts.size() <= kMostHosts));
    } catch (const std::invalid_argument&) {
    }
    try {
      const auto counts = expand_counts(text);
      CHECK(!counts.empty());
    } catch (const std::invalid_argument&) {
    }
  }
  CHECK(lists > 100);
}
