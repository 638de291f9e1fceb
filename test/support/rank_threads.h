#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ddp::test {

/// Nothing that ranks of a test do takes longer than a fraction of this.
constexpr std::chrono::seconds kRankPatience{120};

/// Runs `body(rank)` on a thread for each rank and waits for all. Returns what
/// each rank threw, "" for nothing.
///
/// Ranks that still run when the patience is over end the program with a
/// message that names them: their stack lies in the test's, so the test cannot
/// go on without them. Catch2 then names the test.
std::vector<std::string> try_rank_threads(
    int size,
    const std::function<void(int rank)>& body,
    std::chrono::milliseconds patience = kRankPatience);

/// @throws std::runtime_error with the first error that is not "", and its
/// rank.
void throw_first(const std::vector<std::string>& errors);

}  // namespace ddp::test
