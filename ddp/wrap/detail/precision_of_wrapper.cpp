#include "ddp/wrap/detail/precision_of_wrapper.h"

#include <optional>
#include <utility>

#include "ddp/exchanges/cast_exchange.h"

namespace ddp::detail {
namespace {

void check_precision(const char* option, std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(!dtype || *dtype == c10::kBFloat16 || *dtype == c10::kHalf ||
                  *dtype == c10::kFloat || *dtype == c10::kDouble,
              "Expected ",
              option,
              " of mixed_precision to be kBFloat16, kHalf, kFloat or kDouble, "
              "but got ",
              *dtype);
}

}  // namespace

std::shared_ptr<Exchange> choose_exchange(
    const MixedPrecision& precision,
    std::shared_ptr<Exchange> own,
    const c10::intrusive_ptr<c10d::Backend>& group) {
  check_precision("reduce_dtype", precision.reduce_dtype());
  check_precision("buffer_dtype", precision.buffer_dtype());
  TORCH_CHECK(!own || !precision.reduce_dtype(),
              "Expected mixed_precision without a reduce_dtype beside an "
              "exchange of one's own, but got ",
              *precision.reduce_dtype(),
              "; put a CastExchange around that exchange");
  const auto dtype = precision.reduce_dtype();
  if (own || !dtype || !group) {
    return own;
  }
  return std::make_shared<CastExchange>(group, *dtype);
}

void cast_buffers(const MixedPrecision& precision,
                  const std::vector<at::Tensor>& buffers) {
  if (!precision.buffer_dtype()) {
    return;
  }
  for (const auto& buffer : buffers) {
    if (buffer.is_floating_point()) {
      buffer.set_data(buffer.to(*precision.buffer_dtype()));
    }
  }
}

}  // namespace ddp::detail
