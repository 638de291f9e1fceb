#pragma once

#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <string>

namespace ddp::bench {

using Step = std::function<void()>;

/// Runs blocks of steps on command, so that the arms alternate. Answers each
/// line "ARM STEPS" of stdin with the duration in seconds. worker.py sends the
/// lines.
/// @param make  returns the step of an arm; called once for each arm.
inline void run_blocks(
    const std::function<Step(const std::string& arm)>& make) {
  std::map<std::string, Step> arms;
  std::string name;
  for (int64_t steps = 0; std::cin >> name >> steps;) {
    auto& step = arms[name];
    if (!step) {
      step = make(name);
    }
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      step();
    }
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - start;
    std::cout << time.count() << std::endl;
  }
}

}  // namespace ddp::bench
