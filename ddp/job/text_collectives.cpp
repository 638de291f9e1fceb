#include "ddp/job/text_collectives.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <c10/util/hash.h>

#include "ddp/base/text/record.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

at::Tensor to_bytes(const std::string& text, int64_t size) {
  auto bytes = at::zeros({size}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

std::string to_text(const at::Tensor& bytes, int64_t size) {
  const auto host = bytes.cpu();
  const auto* data = host.const_data_ptr<uint8_t>();
  return {data, data + size};
}

std::vector<at::Tensor> all_gather(c10d::Backend& group,
                                   const at::Tensor& mine) {
  std::vector<at::Tensor> inputs{mine};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    outputs[0].push_back(at::empty_like(mine));
  }
  wait(group.allgather(outputs, inputs), group, "all-gather");
  return outputs[0];
}

}  // namespace

std::vector<std::string> all_gather_text(c10d::Backend& group,
                                         c10::Device device,
                                         const std::string& mine) {
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths;
  for (const auto& peer :
       all_gather(group, at::full({1}, length, at::kLong).to(device))) {
    lengths.push_back(peer.item<int64_t>());
  }
  // An abort ends the host's wait without an error and leaves garbage.
  check_whole(group, "all-gather");
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) {
    return texts;
  }
  const auto gathered = all_gather(group, to_bytes(mine, longest).to(device));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank] = to_text(gathered[rank], lengths[rank]);
  }
  check_whole(group, "all-gather");
  return texts;
}

bool are_texts_equal(c10d::Backend& group,
                     c10::Device device,
                     const std::string& mine) {
  const auto digest = c10::sha1(" " + mine).str();  // sha1("") is empty
  const auto own = to_bytes(digest, static_cast<int64_t>(digest.size()));
  const auto gathered = at::stack(all_gather(group, own.to(device))).cpu();
  check_whole(group, "all-gather");
  return at::equal(gathered, own.expand_as(gathered));
}

std::string broadcast_text(c10d::Backend& group,
                           c10::Device device,
                           const std::string& text,
                           int from) {
  c10d::BroadcastOptions options;
  options.rootRank = from;
  std::vector<at::Tensor> length{
      at::full({1}, static_cast<int64_t>(text.size()), at::kLong).to(device)};
  wait(group.broadcast(length, options), group, "broadcast");
  const auto size = length[0].item<int64_t>();
  check_whole(group, "broadcast");
  if (size == 0) {
    return "";
  }
  std::vector<at::Tensor> bytes{(group.getRank() == from
                                     ? to_bytes(text, size)
                                     : at::zeros({size}, at::kByte))
                                    .to(device)};
  wait(group.broadcast(bytes, options), group, "broadcast");
  auto received = to_text(bytes[0], size);
  check_whole(group, "broadcast");
  return received;
}

std::vector<std::string> fields_of(const std::string& message) {
  auto fields = split_fields(message);
  TORCH_CHECK(fields && !fields->empty(),
              "Expected messages of this version of the library from all "
              "ranks, but got another one; link all ranks with one version");
  return *std::move(fields);
}

}  // namespace ddp::detail
