#include "ddp/data/evaluate.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "ddp/base/text/rank_text.h"
#include "ddp/data/detail/split_indices.h"
#include "ddp/job/collectives.h"
#include "ddp/job/error_text.h"
#include "ddp/job/peers.h"

namespace ddp {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;
using Results = std::function<at::Tensor(const std::vector<size_t>& indices)>;

/// Returns this rank's part of the evaluation.
detail::Split split_of(size_t count, const Group& group) {
  const auto ranks = detail::peers(group);
  detail::Split split;
  split.dataset_size = count;
  split.num_replicas = ranks ? static_cast<size_t>(ranks->getSize()) : 1;
  split.rank = ranks ? static_cast<size_t>(ranks->getRank()) : 0;
  split.shuffle = false;
  split.tail = detail::Split::Tail::uneven;
  return split;
}

/// Returns "" if the tensor has one row per sample; zero rows may be an
/// undefined tensor.
std::string row_error(const at::Tensor& rows, size_t expected) {
  const bool has_rows = rows.defined() && rows.dim() > 0;
  const size_t got = has_rows ? static_cast<size_t>(rows.size(0)) : 0;
  if (got == expected && (has_rows || !rows.defined())) {
    return "";
  }
  return c10::str("Expected a row for each of ",
                  expected,
                  " samples, but got ",
                  rows.defined() ? c10::str("shape ", rows.sizes())
                                 : "an undefined tensor");
}

at::Tensor compute(const std::vector<size_t>& mine,
                   size_t batch_size,
                   const Results& results) {
  std::vector<at::Tensor> batches;
  for (size_t begin = 0; begin < mine.size(); begin += batch_size) {
    const size_t end = std::min(mine.size(), begin + batch_size);
    const std::vector<size_t> indices(mine.begin() + begin, mine.begin() + end);
    batches.push_back(results(indices));
    const auto error = row_error(batches.back(), indices.size());
    TORCH_CHECK(error.empty(), error);
  }
  return batches.empty() ? at::Tensor() : at::cat(batches);
}

/// Restores the order of the samples.
/// @param parts  rows by rank; row i of rank r belongs to sample r + i p.
at::Tensor interleave(const std::vector<at::Tensor>& parts, size_t count) {
  if (!parts.front().defined()) {
    return at::empty({0});
  }
  auto sizes = parts.front().sizes().vec();
  sizes[0] = static_cast<int64_t>(count);
  const auto all = at::empty(sizes, parts.front().options());
  const auto step = static_cast<int64_t>(parts.size());
  for (int64_t rank = 0; rank < step && rank < sizes[0]; ++rank) {
    all.slice(0, rank, std::nullopt, step).copy_(parts[rank]);
  }
  return all;
}

/// Gathers the rows. All ranks throw if a rank has a wrong number of rows or
/// has failed.
at::Tensor gather_samples(const Group& group,
                          const detail::Split& split,
                          const at::Tensor& mine,
                          std::string failure) {
  if (failure.empty()) {
    failure = row_error(mine, detail::split_size(split));
  }
  const auto failures = detail::texts_by_rank(all_gather_text(failure, group));
  TORCH_CHECK(failures.empty(), "evaluation: ", failures);
  return interleave(all_gather(mine, group), split.dataset_size);
}

}  // namespace

at::Tensor evaluate(size_t count,
                    size_t batch_size,
                    const Results& results,
                    const Group& group) {
  TORCH_CHECK(batch_size > 0, "Expected a positive batch_size, but got 0");
  const c10::NoGradGuard no_grad;
  const auto split = split_of(count, group);
  at::Tensor mine;
  std::exception_ptr thrown;
  try {
    mine =
        compute(detail::split_indices(split, /*epoch=*/0), batch_size, results);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) {
    return gather_samples(group, split, mine, "");
  }
  try {
    gather_samples(
        group, split, mine, detail::first_line(detail::text_of(thrown)));
  } catch (const std::exception&) {
    // The other ranks throw this one; the own exception says more.
  }
  std::rethrow_exception(thrown);
}

at::Tensor all_gather_samples(const at::Tensor& rows,
                              size_t count,
                              const Group& group) {
  const c10::NoGradGuard no_grad;
  return gather_samples(group, split_of(count, group), rows, "");
}

}  // namespace ddp
