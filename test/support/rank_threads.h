#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ddp::test {

/// Time limit of the ranks of a test, far longer than any test needs.
constexpr std::chrono::seconds kRankPatience{120};

/// Runs `body(rank)` on a thread for each rank and waits for all. Returns the
/// error text of each rank, or "".
///
/// Ranks that still run after `patience` end the program with a message that
/// names them: they refer to the test's stack, so the test cannot continue
/// without them. Catch2 then names the test.
std::vector<std::string> try_rank_threads(
    int size,
    const std::function<void(int rank)>& body,
    std::chrono::milliseconds patience = kRankPatience);

/// Throws the first error of the ranks, if there is one.
/// @throws std::runtime_error with the first error that is not "", and its
///   rank.
void throw_first(const std::vector<std::string>& errors);

}  // namespace ddp::test
