#include "ddp/job/text_collectives.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/hash.h>

#include "ddp/base/text/rank_text.h"
#include "ddp/base/text/record.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

at::Tensor to_bytes(std::string_view text, int64_t size) {
  auto bytes = at::zeros({size}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

/// @param bytes  on the host.
std::string to_text(const at::Tensor& bytes, int64_t size) {
  const auto* data = bytes.const_data_ptr<uint8_t>();
  return {data, data + size};
}

/// Returns the ranks' tensors, which have one dimension, as rows on the host.
at::Tensor all_gather(c10d::Backend& group,
                      const at::Tensor& mine,
                      const std::string& purpose) {
  const auto what = "all-gather for " + purpose;
  const auto rows = at::empty({group.getSize(), mine.numel()}, mine.options());
  std::vector<at::Tensor> inputs{mine};
  std::vector<std::vector<at::Tensor>> outputs{rows.unbind()};
  wait(group.allgather(outputs, inputs), group, what);
  return copy_result(rows, c10::kCPU, group, what);
}

/// Broadcasts a tensor of one rank, and returns it on the host.
at::Tensor broadcast(c10d::Backend& group,
                     const at::Tensor& mine,
                     const std::string& purpose,
                     int from) {
  const auto what = "broadcast for " + purpose;
  c10d::BroadcastOptions options;
  options.rootRank = from;
  std::vector<at::Tensor> shared{mine};
  wait(group.broadcast(shared, options), group, what);
  return copy_result(shared[0], c10::kCPU, group, what);
}

/// Gathers a number of each rank on the host.
at::Tensor all_gather_number(c10d::Backend& group,
                             c10::Device device,
                             int64_t mine,
                             const std::string& purpose) {
  return all_gather(group, at::full({1}, mine, at::kLong).to(device), purpose)
      .flatten();
}

/// Exchanges only SHA-1 digests of the texts.
bool are_texts_equal(c10d::Backend& group,
                     c10::Device device,
                     const std::string& mine,
                     const std::string& purpose) {
  const auto digest = c10::sha1(mine).str();
  const auto own = to_bytes(digest, static_cast<int64_t>(digest.size()));
  const auto gathered = all_gather(group, own.to(device), purpose);
  return at::equal(gathered, own.expand_as(gathered));
}

/// Returns the fields of a rank's message; see `ddp/base/text/record.h`.
/// @throws c10::Error for a text that is no record: the rank was linked with
///   another version of this library.
std::vector<std::string> fields_of(const std::string& message) {
  auto fields = split_fields(message);
  TORCH_CHECK(fields && !fields->empty(),
              "Expected messages of this version of the library from all "
              "ranks, but got another one; link all ranks with one version");
  return *std::move(fields);
}

}  // namespace

std::vector<std::string> all_gather_text(c10d::Backend& group,
                                         c10::Device device,
                                         const std::string& mine,
                                         const std::string& purpose) {
  const auto lengths = all_gather_number(
      group, device, static_cast<int64_t>(mine.size()), purpose);
  const auto longest = lengths.max().item<int64_t>();
  std::vector<std::string> texts(group.getSize());
  if (longest == 0) {
    return texts;
  }
  const auto gathered =
      all_gather(group, to_bytes(mine, longest).to(device), purpose);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    texts[rank] = to_text(gathered[rank], lengths[rank].item<int64_t>());
  }
  return texts;
}

void verify_across_ranks(c10d::Backend& group,
                         c10::Device device,
                         const std::vector<std::string>& lines,
                         const std::string& subject,
                         const std::string& advice,
                         const std::string& problem) {
  std::vector<std::string> fields{problem};
  fields.insert(fields.end(), lines.begin(), lines.end());
  const auto mine = join_fields(fields);
  const auto purpose = "the comparison of the ranks' " + subject;
  if (are_texts_equal(group, device, mine, purpose) && problem.empty()) {
    return;
  }
  // Compares with rank 0's lines, because the texts of all ranks may be too
  // large for one of them. The problem is the first line.
  const auto of_0 = fields_of(broadcast_text(group, device, mine, purpose));
  size_t same = 0;
  while (problem.empty() && same < fields.size() && same < of_0.size() &&
         fields[same] == of_0[same]) {
    ++same;
  }
  const auto first =
      all_gather_number(group, device, static_cast<int64_t>(same), purpose)
          .min()
          .item<int64_t>();
  const auto line = all_gather_text(
      group,
      device,
      static_cast<size_t>(first) < fields.size() ? fields[first] : "nothing",
      purpose);
  TORCH_CHECK(first > 0, texts_by_rank(line));
  TORCH_CHECK(false,
              "Expected the same ",
              subject,
              " on all ranks, but got ",
              texts_by_rank(line),
              "; ",
              advice);
}

std::string broadcast_text(c10d::Backend& group,
                           c10::Device device,
                           const std::string& text,
                           const std::string& purpose,
                           int from) {
  const auto length =
      at::full({1}, static_cast<int64_t>(text.size()), at::kLong).to(device);
  const auto size = broadcast(group, length, purpose, from).item<int64_t>();
  constexpr int64_t kMostAtOnce = 64 << 20;  // for GPUs with little free memory
  std::string result;
  for (int64_t begin = 0; begin < size; begin += kMostAtOnce) {
    const auto count = std::min(kMostAtOnce, size - begin);
    const auto bytes =
        group.getRank() == from
            ? to_bytes(std::string_view(text).substr(begin, count), count)
            : at::zeros({count}, at::kByte);
    result += to_text(broadcast(group, bytes.to(device), purpose, from), count);
  }
  return result;
}

std::vector<std::string> gather_text(c10d::Backend& group,
                                     c10::Device device,
                                     const std::string& mine,
                                     const std::string& purpose) {
  std::vector<std::string> texts;
  for (int from = 0; from < group.getSize(); ++from) {
    auto text = broadcast_text(group, device, mine, purpose, from);
    if (group.getRank() == 0) {
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

}  // namespace ddp::detail
