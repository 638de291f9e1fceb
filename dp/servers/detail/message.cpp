#include "dp/servers/detail/message.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace dp::detail {
namespace {

/// "ddp" and the version of the protocol.
constexpr int64_t kProtocol = 0x64647000 + 4;
/// Numbers in a header: protocol, op, version, bits of the loss, bytes of the
/// text, count of the numbers.
constexpr int64_t kHeaderNumbers = 6;

int64_t bytes_sent(const std::string& text) {
  return std::min(static_cast<int64_t>(text.size()), kMaxTextBytes);
}

}  // namespace

std::vector<at::Tensor> pieces_of(const at::Tensor& payload) {
  return payload.defined() && payload.numel() > 0 ? payload.split(kPieceBytes)
                                                  : std::vector<at::Tensor>();
}

at::Tensor empty_header() {
  return at::zeros({kHeaderNumbers}, at::kLong);
}

at::Tensor encode_header(const Message& message) {
  auto header = empty_header();
  auto* numbers = header.mutable_data_ptr<int64_t>();
  numbers[0] = kProtocol;
  numbers[1] = static_cast<int64_t>(message.op);
  numbers[2] = message.version;
  std::memcpy(&numbers[3], &message.loss, sizeof(message.loss));
  numbers[4] = bytes_sent(message.text);
  numbers[5] = static_cast<int64_t>(message.numbers.size());
  return header;
}

Header decode_header(const at::Tensor& header) {
  const auto* numbers = header.const_data_ptr<int64_t>();
  TORCH_CHECK(numbers[0] == kProtocol,
              "Expected a message of version ",
              kProtocol,
              " of the protocol, but got one of ",
              numbers[0],
              "; run the same build on all ranks");
  TORCH_CHECK(
      numbers[1] >= 0 && numbers[1] <= static_cast<int64_t>(Op::failure),
      "Expected a message that this build knows, but got number ",
      numbers[1],
      "; run the same build on all ranks");
  TORCH_CHECK(numbers[4] >= 0 && numbers[4] <= kMaxTextBytes,
              "Expected a text of at most ",
              kMaxTextBytes,
              " bytes, but got one of ",
              numbers[4]);
  TORCH_CHECK(numbers[5] >= 0 && numbers[5] <= kMaxNumbers,
              "Expected at most ",
              kMaxNumbers,
              " numbers, but got ",
              numbers[5]);
  Header result;
  result.message.op = static_cast<Op>(numbers[1]);
  result.message.version = numbers[2];
  std::memcpy(&result.message.loss, &numbers[3], sizeof(result.message.loss));
  result.text_bytes = numbers[4];
  result.numbers = numbers[5];
  return result;
}

at::Tensor encode_text(const std::string& text) {
  const int64_t size = bytes_sent(text);
  auto bytes = at::empty({size}, at::kByte);
  std::copy_n(text.begin(), size, bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

std::string decode_text(const at::Tensor& bytes) {
  const auto* data = bytes.const_data_ptr<uint8_t>();
  return std::string(data, data + bytes.numel());
}

}  // namespace dp::detail
