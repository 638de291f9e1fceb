#include "ddp/job/detail/rows_spec.h"

#include <algorithm>
#include <sstream>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include "ddp/base/text/record.h"
#include "ddp/job/text_collectives.h"

namespace ddp::detail {
namespace {

std::string name_of(const RowsSpec& spec) {
  std::ostringstream text;
  text << spec.dtype << " of shape " << at::IntArrayRef(spec.sizes);
  return text.str();
}

bool fit(const RowsSpec& a, const RowsSpec& b) {
  return a.dtype == b.dtype && a.sizes.size() == b.sizes.size() &&
         (a.sizes.empty() ||
          std::equal(a.sizes.begin() + 1, a.sizes.end(), b.sizes.begin() + 1));
}

}  // namespace

int64_t RowsSpec::rows() const {
  return !has_tensor ? 0 : sizes.empty() ? 1 : sizes[0];
}

int64_t RowsSpec::bytes() const {
  return !has_tensor ? 0
                     : c10::multiply_integers(sizes) *
                           static_cast<int64_t>(c10::elementSize(dtype));
}

RowsSpec rows_spec(const at::Tensor& tensor) {
  RowsSpec spec;
  if (!tensor.defined()) {
    return spec;
  }
  if (tensor.layout() != c10::kStrided || tensor.is_quantized() ||
      tensor.is_meta()) {
    spec.failure = "Expected a dense tensor, but got one that is not";
    return spec;
  }
  return {"", true, tensor.scalar_type(), tensor.sizes().vec()};
}

std::string to_text(const RowsSpec& spec) {
  std::vector<std::string> fields{spec.failure};
  if (spec.has_tensor) {
    fields.push_back(std::to_string(static_cast<int>(spec.dtype)));
  }
  for (const int64_t size : spec.sizes) {
    fields.push_back(std::to_string(size));
  }
  return join_fields(fields);
}

RowsSpec rows_spec_of(const std::string& text) {
  const auto fields = fields_of(text);
  RowsSpec spec;
  spec.failure = fields.at(0);
  spec.has_tensor = fields.size() > 1;
  if (spec.has_tensor) {
    spec.dtype = static_cast<c10::ScalarType>(std::stoi(fields[1]));
  }
  for (size_t i = 2; i < fields.size(); ++i) {
    spec.sizes.push_back(std::stoll(fields[i]));
  }
  return spec;
}

std::string gather_error(const std::vector<RowsSpec>& ranks) {
  std::string failures;
  const RowsSpec* first = nullptr;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].failure.empty()) {
      failures += (failures.empty() ? "rank " : "; rank ") +
                  std::to_string(rank) + ": " + ranks[rank].failure;
    }
  }
  if (!failures.empty()) {
    return failures;
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].has_tensor) {
      continue;
    }
    if (first == nullptr) {
      first = &ranks[rank];
    } else if (!fit(*first, ranks[rank])) {
      return "Expected tensors of one dtype and of the same sizes but for the "
             "first, but got " +
             name_of(*first) + " on rank " +
             std::to_string(first - ranks.data()) + " and " +
             name_of(ranks[rank]) + " on rank " + std::to_string(rank);
    }
  }
  const auto none = std::find_if(
      ranks.begin(), ranks.end(), [](const auto& r) { return !r.has_tensor; });
  if (first != nullptr && first->sizes.empty() && none != ranks.end()) {
    return "Expected a tensor on every rank, because that of rank " +
           std::to_string(first - ranks.data()) +
           " has no dimensions, but got an undefined one on rank " +
           std::to_string(none - ranks.begin());
  }
  return "";
}

std::vector<RowsSpec> without_gaps(std::vector<RowsSpec> ranks) {
  const auto one = std::find_if(
      ranks.begin(), ranks.end(), [](const auto& r) { return r.has_tensor; });
  if (one == ranks.end()) {
    return ranks;
  }
  RowsSpec none = *one;
  if (!none.sizes.empty()) {
    none.sizes[0] = 0;
  }
  for (auto& rank : ranks) {
    if (!rank.has_tensor) {
      rank = none;
    }
  }
  return ranks;
}

at::Tensor tensor_of(const at::Tensor& bytes, const RowsSpec& spec) {
  const int64_t size = spec.bytes();
  if (size == 0) {
    return at::empty(spec.sizes, bytes.options().dtype(spec.dtype));
  }
  return bytes.narrow(0, 0, size).view(spec.dtype).view(spec.sizes);
}

at::Tensor to_bytes(const at::Tensor& tensor,
                    int64_t size,
                    c10::Device device) {
  if (!tensor.defined() || tensor.numel() == 0) {
    return at::zeros({size}, at::TensorOptions(at::kByte).device(device));
  }
  const auto bytes = tensor.detach()
                         .resolve_conj()
                         .resolve_neg()
                         .to(device)
                         .contiguous()
                         .view({-1})
                         .view(at::kByte);
  if (bytes.numel() == size) {
    return bytes;
  }
  auto padded = at::zeros({size}, bytes.options());
  padded.narrow(0, 0, bytes.numel()).copy_(bytes);
  return padded;
}

}  // namespace ddp::detail
