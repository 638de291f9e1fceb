#include "ddp/detail/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <utility>

#include "ddp/detail/checkpoint/module_state.h"
#include "ddp/detail/checkpoint/pickle/dict_reader.h"
#include "ddp/detail/checkpoint/pickle/python_value.h"
#include "ddp/detail/checkpoint/pickle/torch_file.h"
#include "ddp/detail/checkpoint/rng_state.h"
#include "ddp/detail/explain.h"

namespace ddp::detail {
namespace {

using c10::IValue;

constexpr int64_t kFormatVersion = 1;

IValue sampler_to_value(const SamplerState& state) {
  auto dict = new_dict().toGenericDict();
  dict.insert("epoch", state.epoch);
  dict.insert("position", state.position);
  dict.insert("dataset_size", state.dataset_size);
  dict.insert("seed", static_cast<int64_t>(state.seed));
  dict.insert("shuffle", state.shuffle);
  return dict;
}

SamplerState read_sampler(const DictReader& saved) {
  return {saved.integer("epoch"),
          saved.integer("position"),
          saved.integer("dataset_size"),
          static_cast<uint64_t>(saved.integer("seed")),
          saved.boolean("shuffle")};
}

/// Python's names.
IValue scaler_to_value(const std::optional<GradScalerState>& state) {
  auto dict = new_dict().toGenericDict();
  if (state) {
    dict.insert("scale", state->scale);
    dict.insert("growth_factor", state->growth_factor);
    dict.insert("backoff_factor", state->backoff_factor);
    dict.insert("growth_interval", state->growth_interval);
    dict.insert("_growth_tracker", state->growth_tracker);
  }
  return dict;
}

/// Of a scaler that was not enabled the dict is empty.
std::optional<GradScalerState> read_scaler(const DictReader& saved) {
  if (saved.entries().empty()) {
    return std::nullopt;
  }
  return GradScalerState{saved.number("scale"),
                         saved.number("growth_factor"),
                         saved.number("backoff_factor"),
                         saved.integer("growth_interval"),
                         saved.integer("_growth_tracker")};
}

std::optional<int64_t> optional_integer(const DictReader& saved,
                                        const std::string& key) {
  return saved.has_value(key) ? std::optional(saved.integer(key))
                              : std::nullopt;
}

/// Python programs keep theirs under this name, too, in forms of their own.
std::optional<IValue> read_rng(const DictReader& saved,
                               const CheckpointParts& parts,
                               size_t rank,
                               size_t world_size) {
  if (!saved.has("rng") || !saved.get("rng").isList()) {
    return std::nullopt;
  }
  const auto states = saved.list("rng");
  const bool are_ours =
      std::all_of(states.begin(), states.end(), [](const IValue& state) {
        return state.isGenericDict();
      });
  if (!are_ours || states.size() != world_size) {
    return std::nullopt;
  }
  check_rng(states[rank], gpu_of(*parts.model));
  return states[rank];
}

CheckpointContent checked_content(const TorchFile& file,
                                  const CheckpointParts& parts,
                                  size_t rank,
                                  size_t world_size) {
  CheckpointContent content;
  content.content_id = file.content_id;
  const auto model = find_state_dict(file.value);
  content.model = match(*parts.model, to_state_dict(model));
  // In a bare state dict, "epoch" and "rng" are names of tensors.
  const DictReader saved(model.is(file.value) ? new_dict() : file.value,
                         "checkpoint");
  const auto version = optional_integer(saved, "format_version");
  TORCH_CHECK(version.value_or(0) <= kFormatVersion,
              "it was written by a newer version of this library");
  if (parts.optimizer != nullptr) {
    content.optimizer =
        read_optimizer(*parts.optimizer, saved.get("optimizer"));
  }
  if (parts.sampler) {
    content.sampler = read_sampler(saved.dict("sampler"));
    parts.sampler->check_state(*content.sampler);
  }
  if (parts.scaler != nullptr && parts.scaler->is_enabled()) {
    content.scaler = read_scaler(saved.dict("scaler"));
    parts.scaler->check_state_dict(content.scaler);
  }
  content.rng = read_rng(saved, parts, rank, world_size);
  content.epoch = optional_integer(saved, "epoch");
  content.step = optional_integer(saved, "step");
  return content;
}

}  // namespace

std::optional<c10::Device> gpu_of(const torch::nn::Module& model) {
  for (const auto& parameter : model.parameters()) {
    if (parameter.is_cuda()) {
      return parameter.device();
    }
  }
  return std::nullopt;
}

IValue checkpoint_to_value(const CheckpointParts& parts,
                           const std::optional<SamplerState>& sampler,
                           int64_t epoch,
                           int64_t step,
                           const std::vector<IValue>& rng) {
  auto dict = new_dict().toGenericDict();
  dict.insert("model", to_value(state_dict(*parts.model)));
  if (parts.optimizer != nullptr) {
    dict.insert("optimizer", optimizer_to_value(*parts.optimizer));
  }
  dict.insert("epoch", epoch);
  dict.insert("step", step);
  if (sampler) {
    dict.insert("sampler", sampler_to_value(*sampler));
  }
  if (parts.scaler != nullptr) {
    dict.insert("scaler", scaler_to_value(parts.scaler->state_dict()));
  }
  auto states = new_list();
  append_items(states, rng);
  dict.insert("rng", states);
  dict.insert("format_version", kFormatVersion);
  return dict;
}

CheckpointContent read_checkpoint(const std::string& path,
                                  const CheckpointParts& parts,
                                  size_t rank,
                                  size_t world_size) {
  const auto file = read_torch_file(path);
  return explain("Cannot load " + path, [&] {
    return checked_content(file, parts, rank, world_size);
  });
}

void apply(CheckpointContent content, const CheckpointParts& parts) {
  copy_into(*parts.model, content.model);
  if (content.optimizer) {
    apply(std::move(*content.optimizer), *parts.optimizer);
  }
  if (content.sampler) {
    DistributedSampler(*parts.sampler).load_state(*content.sampler);
  }
  if (content.scaler) {
    parts.scaler->load_state_dict(content.scaler);
  }
  if (content.rng) {
    restore_rng(*content.rng, gpu_of(*parts.model));
  }
}

}  // namespace ddp::detail
