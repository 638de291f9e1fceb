#include "ddp/job/state_sync.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>

#include <ATen/Functions.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include "ddp/base/text/record.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

constexpr const char* kOption = "option";

template <typename T>
std::string to_text(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string dtypes_of(const at::Tensor& tensor) {
  const auto dtype = to_text(tensor.scalar_type());
  const auto gradients = tensor.requires_grad()
                             ? tensor.grad_dtype()
                             : std::optional(tensor.scalar_type());
  return gradients == tensor.scalar_type() ? dtype
         : gradients ? dtype + " with gradients of " + to_text(*gradients)
                     : dtype + " with any gradients";
}

struct Field {
  const char* name;
  std::string TensorSpec::*value;
};
constexpr Field kFields[] = {{"shape", &TensorSpec::shape},
                             {"strides", &TensorSpec::strides},
                             {"dtype", &TensorSpec::dtype},
                             {"requires_grad", &TensorSpec::requires_grad},
                             {"device", &TensorSpec::device},
                             {"values", &TensorSpec::values}};

/// Joins a refusal, or "", and the specs.
std::string message_of(const std::vector<TensorSpec>& specs,
                       const std::string& refusal) {
  std::vector<std::string> fields{refusal};
  for (const auto& spec : specs) {
    fields.push_back(spec.kind);
    fields.push_back(spec.name);
    for (const auto& field : kFields) {
      fields.push_back(spec.*field.value);
    }
  }
  return join_fields(fields);
}

std::string mismatch_of(const std::vector<std::vector<TensorSpec>>& ranks,
                        size_t reference,
                        size_t rank) {
  const auto& first = ranks[reference];
  const auto& other = ranks[rank];
  const std::string base = "rank " + std::to_string(reference);
  const std::string who = "rank " + std::to_string(rank);
  const size_t common = std::min(first.size(), other.size());
  const size_t options =
      std::count_if(first.begin(), first.end(), [](const auto& spec) {
        return spec.kind == kOption;
      });
  for (size_t i = 0; i < common; ++i) {
    const TensorSpec& a = first[i];
    const TensorSpec& b = other[i];
    if (a.name != b.name || a.kind != b.kind) {
      return a.kind + " " + std::to_string(i - options) + " is " + a.name +
             " on " + base + ", but " + b.kind + " " + b.name + " on " + who;
    }
    for (const auto& field : kFields) {
      if (a.*field.value != b.*field.value) {
        return a.kind + " " + a.name +
               (a.kind == kOption ? " is "
                                  : " has " + std::string(field.name) + " ") +
               a.*field.value + " on " + base + ", but " + b.*field.value +
               " on " + who;
      }
    }
  }
  if (first.size() == other.size()) {
    return "";
  }
  const bool base_has_more = first.size() > other.size();
  const TensorSpec& extra = base_has_more ? first[common] : other[common];
  return base + " has " + std::to_string(first.size() - options) +
         " parameters and buffers, but " + who + " has " +
         std::to_string(other.size() - options) + "; " + extra.kind + " " +
         extra.name + " is only on " + (base_has_more ? base : who);
}

}  // namespace

std::vector<std::vector<at::Tensor>> by_dtype_and_device(
    const std::vector<at::Tensor>& tensors) {
  using Key = std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  std::map<Key, size_t> places;
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& tensor : tensors) {
    const auto device = tensor.device();
    const Key key{tensor.scalar_type(), device.type(), device.index()};
    const auto [place, is_new] = places.emplace(key, groups.size());
    if (is_new) {
      groups.emplace_back();
    }
    groups[place->second].push_back(tensor);
  }
  return groups;
}

TensorSpec describe(const std::string& name,
                    const std::string& kind,
                    const at::Tensor& tensor) {
  return {name,
          kind,
          to_text(tensor.sizes()),
          to_text(tensor.strides()),
          dtypes_of(tensor),
          tensor.requires_grad() ? "true" : "false",
          "",
          ""};
}

TensorSpec describe_option(const std::string& name, const std::string& value) {
  TensorSpec spec;
  spec.name = name;
  spec.kind = kOption;
  spec.values = value;
  return spec;
}

void number_devices(std::vector<TensorSpec>& specs,
                    const std::vector<at::Tensor>& tensors,
                    const std::optional<c10::Device>& own) {
  std::vector<c10::Device> seen;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto device = tensors[i].device();
    const auto found = std::find(seen.begin(), seen.end(), device);
    specs[i].device = "number " + std::to_string(found - seen.begin() + 1) +
                      (device == own ? ", the rank's own" : "");
    if (found == seen.end()) {
      seen.push_back(device);
    }
  }
}

std::string first_mismatch(const std::vector<std::vector<TensorSpec>>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const std::string found = mismatch_of(ranks, 0, rank);
    if (!found.empty()) {
      return found;
    }
  }
  return "";
}

std::string majority_mismatch(
    const std::vector<std::vector<TensorSpec>>& ranks) {
  std::vector<std::string> texts;
  texts.reserve(ranks.size());
  for (const auto& specs : ranks) {
    texts.push_back(specs_to_text(specs));
  }
  const auto fewer = [&](const std::string& a, const std::string& b) {
    return std::count(texts.begin(), texts.end(), a) <
           std::count(texts.begin(), texts.end(), b);
  };
  const auto most = std::max_element(texts.begin(), texts.end(), fewer);
  const auto odd =
      std::find_if(texts.begin(), texts.end(), [&](const auto& text) {
        return text != *most;
      });
  return odd == texts.end()
             ? ""
             : mismatch_of(ranks, most - texts.begin(), odd - texts.begin());
}

std::string specs_to_text(const std::vector<TensorSpec>& specs) {
  return message_of(specs, "");
}

std::vector<TensorSpec> specs_from_text(const std::string& text) {
  const auto fields = fields_of(text);
  std::vector<TensorSpec> specs;
  for (size_t i = 1; i < fields.size();) {
    TensorSpec spec;
    spec.kind = fields.at(i++);
    spec.name = fields.at(i++);
    for (const auto& field : kFields) {
      spec.*field.value = fields.at(i++);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

void verify_across_ranks(c10d::Backend& group,
                         c10::Device device,
                         const std::vector<TensorSpec>& mine,
                         const std::string& refusal) {
  const auto own = message_of(mine, refusal);
  // Usually all are equal; then the full texts are not exchanged.
  if (are_texts_equal(group, device, own) && refusal.empty()) {
    return;
  }
  const auto texts = all_gather_text(group, device, own);
  std::vector<std::vector<TensorSpec>> ranks;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto refused = fields_of(texts[rank]).front();
    TORCH_CHECK(refused.empty(), refused, " (on rank ", rank, ")");
    ranks.push_back(specs_from_text(texts[rank]));
  }
  const std::string mismatch = first_mismatch(ranks);
  TORCH_CHECK(mismatch.empty(),
              "Expected the same module on all ranks, but ",
              mismatch,
              ". Build it in the same way on every rank");
}

void copy_pieces(const at::Tensor& flat,
                 const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> targets;
  for (const auto& tensor : tensors) {
    sizes.push_back(tensor.numel());
    // An alias with its own version counter.
    targets.push_back(tensor.variable_data());
  }
  auto pieces = flat.split_with_sizes(sizes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (targets[i].dim() != 1) {
      pieces[i] = pieces[i].view(targets[i].sizes());
    }
  }
  at::_foreach_copy_(targets, pieces);
}

void broadcast_from(int source,
                    c10d::Backend& group,
                    const std::vector<at::Tensor>& tensors,
                    int64_t message_bytes) {
  c10::NoGradGuard no_grad;
  c10d::BroadcastOptions options;
  options.rootRank = source;
  for (const auto& members : by_dtype_and_device(tensors)) {
    for (auto& chunk :
         torch::utils::take_tensors(members, message_bytes, false)) {
      const auto flat = torch::utils::flatten_dense_tensors(chunk.tensors);
      // As bytes, because NCCL and Gloo do not know all dtypes (int16, float8).
      std::vector<at::Tensor> bytes{flat.view({-1}).view(at::kByte)};
      wait(group.broadcast(bytes, options),
           group,
           "broadcast of rank " + std::to_string(source) + "'s state");
      if (group.getRank() != source) {
        copy_pieces(flat, chunk.tensors);
      }
    }
  }
}

}  // namespace ddp::detail
