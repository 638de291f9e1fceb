#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

namespace ddp::test {

/// The main loop of a program that gives a reader damaged inputs:
///   PROGRAM [COUNT [SEED [FILE...]]]
class Fuzzer {
 public:
  /// @param count  of inputs, without an argument.
  Fuzzer(int argc, char** argv, size_t count)
      : count_(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : count),
        seed_(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1),
        files_(argv + std::min(argc, 3), argv + argc) {}

  size_t seed() const { return seed_; }
  const std::vector<std::string>& files() const { return files_; }

  /// Calls `read` with the number of each input, and prints the outcomes. Ends
  /// the program if an input takes a minute.
  /// @param read  returns, or refuses the input with a short c10::Error.
  /// @returns the exit status: 1 after any other exception.
  int run(const std::function<void(size_t number)>& read) {
    for (size_t i = 0; i < count_; ++i) {
      try {
        run_one(read, i);
      } catch (const std::exception& error) {
        std::printf("input %zu of seed %zu: %s\n", i, seed_, error.what());
        return 1;
      }
    }
    std::printf(
        "seed %zu, %zu inputs: %zu refused, %zu read; the longest took %.1f "
        "ms\n",
        seed_,
        count_,
        refused_,
        count_ - refused_,
        longest_ * 1e3);
    return 0;
  }

 private:
  void run_one(const std::function<void(size_t number)>& read, size_t number) {
    const auto start = std::chrono::steady_clock::now();
    ::alarm(60);
    try {
      read(number);
    } catch (const c10::Error& error) {
      ++refused_;
      const std::string text = error.what_without_backtrace();
      if (text.empty() || text.size() >= 1000) {
        throw std::logic_error("no clear error: " + text);
      }
    }
    ::alarm(0);
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    longest_ = std::max(longest_, took.count());
  }

  size_t count_;
  size_t seed_;
  std::vector<std::string> files_;
  size_t refused_ = 0;
  double longest_ = 0;
};

}  // namespace ddp::test
