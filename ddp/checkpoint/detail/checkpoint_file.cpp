#include "ddp/checkpoint/detail/checkpoint_file.h"

#include <algorithm>
#include <array>

#include "ddp/checkpoint/detail/rng_state.h"
#include "ddp/checkpoint/module_state.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

using c10::IValue;

constexpr int64_t kFormatVersion = 2;
constexpr const char* kModel = "model";
constexpr std::array kOwnNames{"epoch", "step", "rng", "format_version"};

std::string in_entry(const std::string& name) {
  return "in \"" + name + "\"";
}

template <class Names>
bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class Entries>
auto* find_in(Entries& entries, const std::string& name) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& each) {
        return each.first == name;
      });
  return found == entries.end() ? nullptr : &*found;
}

/// Returns the GPUs whose random states are saved, with the modules' GPUs
/// first. Empty if all modules are on the CPU.
std::vector<c10::Device> gpus_of_parts(const CheckpointParts& parts) {
  std::vector<const torch::nn::Module*> modules;
  for (const auto& [name, entry] : parts.entries) {
    modules.push_back(entry->module());
  }
  return gpus_of(modules);
}

std::optional<int64_t> optional_integer(const DictReader& saved,
                                        const std::string& key) {
  return saved.has_value(key) ? std::optional(saved.integer(key))
                              : std::nullopt;
}

/// Returns this rank's random states; std::nullopt if there are none or they
/// are for another number of ranks.
std::optional<IValue> find_rng(const DictReader& saved,
                               size_t rank,
                               size_t world_size) {
  const auto states =
      saved.has_value("rng") ? saved.list("rng") : std::vector<IValue>();
  return states.size() == world_size ? std::optional(states[rank])
                                     : std::nullopt;
}

}  // namespace

void CheckpointParts::add(std::string name,
                          std::shared_ptr<CheckpointEntry> entry) {
  TORCH_CHECK(
      !name.empty() && !contains(kOwnNames, name) && !find_in(entries, name),
      "Expected a name of its own for each entry of a checkpoint, other "
      "than epoch, step, rng and format_version, but got \"",
      name,
      "\"");
  entries.emplace_back(std::move(name), std::move(entry));
}

void CheckpointParts::set(const std::string& name,
                          std::shared_ptr<CheckpointEntry> entry) {
  if (auto* found = find_in(entries, name)) {
    found->second = std::move(entry);
  } else {
    entries.emplace_back(name, std::move(entry));
  }
}

void CheckpointParts::apply(const CheckpointUpdate& update) {
  epoch = update.epoch.value_or(epoch);
  step = update.step.value_or(step);
  for (const auto& apply : update.apply) {
    apply();
  }
}

std::function<IValue()> collect(const CheckpointParts& parts,
                                const Ranks& ranks) {
  std::vector<std::pair<std::string, CheckpointEntry::MakeValue>> entries;
  for (const auto& [name, entry] : parts.entries) {
    entries.emplace_back(name, entry->collect(ranks, parts.trained));
  }
  auto rng = ranks.gather(rng_bytes(gpus_of_parts(parts)));
  return [entries = std::move(entries),
          rng = std::move(rng),
          epoch = parts.epoch,
          step = parts.step] {
    auto dict = new_dict().toGenericDict();
    for (const auto& [name, make] : entries) {
      dict.insert(name, explain(in_entry(name), make));
    }
    dict.insert("epoch", epoch);
    dict.insert("step", step);
    auto states = new_list().toList();
    for (const auto& bytes : rng) {
      states.push_back(rng_value(bytes));
    }
    dict.insert("rng", states);
    dict.insert("format_version", kFormatVersion);
    return IValue(dict);
  };
}

CheckpointUpdate check(const IValue& file,
                       const CheckpointParts& parts,
                       size_t rank,
                       size_t world_size) {
  // A file with a model need not be a dict of entries.
  const auto is_model = [](const auto& named) {
    return named.first == kModel && named.second->module() != nullptr;
  };
  const bool has_model =
      std::any_of(parts.entries.begin(), parts.entries.end(), is_model);
  const auto model = has_model ? find_state_dict(file) : IValue();
  // In a bare state dict, "epoch" and "rng" are names of tensors.
  const DictReader saved(model.is(file) ? new_dict() : file, "checkpoint");
  const auto version = optional_integer(saved, "format_version");
  TORCH_CHECK(version.value_or(0) <= kFormatVersion,
              "it was written by a newer version of this library");
  CheckpointUpdate update;
  for (const auto& named : parts.entries) {
    const auto& entry = *named.second;
    if (!entry.loads()) {
      continue;
    }
    const auto value = is_model(named) ? model : saved.get(named.first);
    update.apply.push_back(explain(in_entry(named.first), [&] {
      return entry.check(value, {rank, world_size});
    }));
  }
  // Without a version, a Python program wrote the file, and "rng" has its
  // meaning.
  const auto rng = version ? find_rng(saved, rank, world_size) : std::nullopt;
  if (rng) {
    check_rng(*rng, gpus_of_parts(parts));
    update.apply.emplace_back(
        [rng = *rng, gpus = gpus_of_parts(parts)] { restore_rng(rng, gpus); });
  }
  update.epoch = optional_integer(saved, "epoch");
  update.step = optional_integer(saved, "step");
  return update;
}

}  // namespace ddp::detail
