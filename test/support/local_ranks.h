#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::test {

using Group = c10::intrusive_ptr<c10d::Backend>;

/// Runs `body(group)` once on each of `size` ranks: threads of this process
/// with one Gloo backend each, over one HashStore. Returns the error text of
/// each rank, or "". The backend of a rank that throws is destroyed at once, as
/// if its process had died.
std::vector<std::string> try_ranks(
    int size, const std::function<void(const Group& group)>& body);

/// Same as above, but with groups of a job: wrappers sum gradients in
/// shared memory.
std::vector<std::string> try_host_ranks(
    int size, const std::function<void(const Group& group)>& body);

/// Same as `try_ranks`, but throws the first error of any rank.
void run_ranks(int size, const std::function<void(const Group& group)>& body);

}  // namespace ddp::test
