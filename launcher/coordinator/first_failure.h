#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace launcher {

/// The worker that failed first in a job of several hosts, and the one that was
/// first on another host, where one has failed there, too.
struct FirstFailure {
  struct Next {
    int rank = 0;
    std::string host;
    /// By how much it was later, by clocks that agree to within clock_error;
    /// nothing where the clocks have not been compared.
    std::optional<std::chrono::nanoseconds> later{};
    std::chrono::nanoseconds clock_error{0};

    /// It was later. If not, nobody knows which of the two was first.
    bool is_certain() const { return later && *later > clock_error; }
  };

  int rank = 0;
  std::string host;
  std::optional<Next> next{};
};

/// "12.3 ms before rank 7 on host b (clocks agree to within 0.2 ms)", or that
/// and why their order is not known; empty where nobody else has failed.
std::string order_text(const FirstFailure& first);

}  // namespace launcher
