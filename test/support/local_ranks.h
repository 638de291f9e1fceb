#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::test {

using Group = c10::intrusive_ptr<c10d::Backend>;

/// Runs `body(group)` once on each of `size` ranks: threads of this process
/// with a Gloo backend each, over one HashStore. Returns what each rank threw,
/// "" for nothing. A rank that throws gives up its backend at once, as a
/// process that dies would.
std::vector<std::string> try_ranks(
    int size, const std::function<void(const Group& group)>& body);

/// The same, but throws the first error of any rank.
void run_ranks(int size, const std::function<void(const Group& group)>& body);

}  // namespace ddp::test
