#include "ddp/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "ddp/base/atomic_folder.h"
#include "ddp/checkpoint/detail/adapters.h"
#include "ddp/checkpoint/detail/communicator.h"
#include "ddp/checkpoint/detail/safetensors.h"
#include "ddp/checkpoint/detail/sharded_folder.h"
#include "ddp/checkpoint/pickle/deferred_tensor.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/job/error_text.h"

namespace ddp {
namespace {

using c10::IValue;
using detail::CheckpointEntry;
using detail::Communicator;
using detail::DictReader;
using torch::nn::Module;
using torch::optim::Optimizer;

constexpr int64_t kFormatVersion = 2;
constexpr const char* kModel = "model";
constexpr const char* kEpoch = "epoch";
constexpr const char* kStep = "step";
constexpr const char* kRng = "rng";
constexpr const char* kVersion = "format_version";
constexpr std::array kOwnNames{kEpoch, kStep, kRng, kVersion, detail::kSaveId};

std::string in_entry(const std::string& name) {
  return "in \"" + name + "\"";
}

/// Returns the state of a sampler from the progress of all ranks. Collective.
IValue collect_sampler(const DistributedSampler& sampler,
                       const Communicator& ranks) {
  const auto mine = sampler.progress();
  std::vector<SamplerProgress> by_rank;
  for (const auto& text :
       ranks.gather(c10::str(mine.rank, ' ', mine.done, ' ', mine.in_pass))) {
    SamplerProgress progress;
    std::istringstream(text) >> progress.rank >> progress.done >>
        progress.in_pass;
    by_rank.push_back(progress);
  }
  return sampler.state_dict(by_rank);
}

/// Returns the states of `detail::to_bytes`.
IValue list_of(const std::vector<std::string>& states) {
  auto list = detail::new_list().toList();
  for (const auto& bytes : states) {
    list.push_back(detail::from_bytes(bytes));
  }
  return list;
}

/// Returns the state of this rank from an entry's value in a file.
IValue state_in(const IValue& saved,
                const std::string& name,
                CheckpointScope scope,
                const Communicator& ranks) {
  if (scope == CheckpointScope::common) {
    return saved;
  }
  const auto where = "its checkpoint[\"" + name + "\"]";
  TORCH_CHECK(saved.isList() && !saved.toListRef().empty(),
              "expected a list with the values of the ranks as ",
              where,
              ", but got ",
              saved.isList() ? "an empty one" : detail::describe(saved));
  const auto states = saved.toListRef();
  TORCH_CHECK(scope == CheckpointScope::per_rank_modulo ||
                  states.size() == ranks.size(),
              "expected a list with the values of ",
              ranks.size(),
              " ranks as ",
              where,
              ", but got those of ",
              states.size(),
              "; leave the entry out of the Checkpoint that loads");
  return states[ranks.rank() % states.size()];
}

std::optional<int64_t> optional_integer(const DictReader& saved,
                                        const std::string& key) {
  return saved.has_value(key) ? std::optional(saved.integer(key))
                              : std::nullopt;
}

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<Module> model) {
  add(kModel, std::move(model));
}

Checkpoint& Checkpoint::add_entry(CheckpointEntry entry) {
  const auto is_name = [&](const char* name) { return entry.name == name; };
  const auto is_mine = [&](const CheckpointEntry& other) {
    return entry.name == other.name;
  };
  TORCH_CHECK(
      !entry.name.empty() &&
          std::none_of(kOwnNames.begin(), kOwnNames.end(), is_name) &&
          std::none_of(entries_.begin(), entries_.end(), is_mine),
      "Expected a name of its own for each entry of a checkpoint, other "
      "than epoch, step, rng, format_version and save_id, but got \"",
      entry.name,
      "\"");
  TORCH_CHECK(entry.object != nullptr,
              "Expected an object with a state as \"",
              entry.name,
              "\" of a checkpoint, but got none");
  entries_.push_back(std::move(entry));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, std::shared_ptr<Module> module) {
  const auto* of = module.get();
  return add_entry({std::move(name),
                    detail::module_state(std::move(module)),
                    /*is_loaded=*/true,
                    of});
}

Checkpoint& Checkpoint::add_optimizer(std::string name, Optimizer& optimizer) {
  const bool is_stateful = dynamic_cast<Stateful*>(&optimizer) != nullptr;
  return add_entry({std::move(name),
                    detail::optimizer_state(optimizer),
                    /*is_loaded=*/true,
                    /*module=*/nullptr,
                    is_stateful ? nullptr : &optimizer});
}

Checkpoint& Checkpoint::add(std::string name, DistributedSampler sampler) {
  return add_entry({std::move(name),
                    std::make_shared<DistributedSampler>(std::move(sampler))});
}

Checkpoint& Checkpoint::add(std::string name, GradScaler& scaler) {
  return add_entry(
      {std::move(name), detail::borrowed(scaler), scaler.is_enabled()});
}

Checkpoint& Checkpoint::add(std::string name, Stateful& object) {
  return add_entry({std::move(name), detail::borrowed(object)});
}

Checkpoint& Checkpoint::add(std::string name,
                            std::shared_ptr<Stateful> object) {
  return add_entry({std::move(name), std::move(object)});
}

Checkpoint& Checkpoint::process_group(c10::intrusive_ptr<c10d::Backend> group) {
  group_ = std::move(group);
  return *this;
}

Checkpoint& Checkpoint::epoch(int64_t epoch) {
  epoch_ = epoch;
  return *this;
}

Checkpoint& Checkpoint::step(int64_t step) {
  step_ = step;
  return *this;
}

std::vector<const Module*> Checkpoint::modules() const {
  std::vector<const Module*> modules;
  for (const auto& entry : entries_) {
    if (entry.module != nullptr) {
      modules.push_back(entry.module);
    }
  }
  return modules;
}

void Checkpoint::save_sharded(const std::string& folder) const {
  const Communicator ranks(group_);
  detail::write_sharded_folder(
      folder, collect(folder, ranks).toGenericDict(), entries_, ranks);
}

void Checkpoint::save(const std::string& path) const {
  const Communicator ranks(group_);
  const auto value = collect(path, ranks);
  write_on_first(
      path, value, ranks, [&] { detail::write_torch_file(path, value); });
}

void Checkpoint::write_on_first(const std::string& path,
                                const IValue& value,
                                const Communicator& ranks,
                                const std::function<void()>& write) {
  const auto read_rest = [&] {
    detail::explain("Cannot save " + path, [&] { detail::read_rest(value); });
  };
  ranks.run_on_all([&] {
    try {
      if (ranks.rank() == 0) {
        write();
      }
    } catch (const std::exception&) {
      // The other ranks wait in the reads that the error has left out.
      try {
        read_rest();
      } catch (const std::exception&) {
        // The first error is the cause.
      }
      throw;
    }
    read_rest();
  });
}

IValue Checkpoint::collect(const std::string& path,
                           const Communicator& ranks) const {
  std::vector<IValue> values;  // of the entries; bytes if the scope is by rank
  std::string error;
  for (const auto& entry : entries_) {
    // After an error, too: a state may need all ranks.
    try {
      values.push_back(entry.object->state_dict());
      if (entry.object->checkpoint_scope() != CheckpointScope::common) {
        values.back() = detail::to_bytes(values.back());
      }
    } catch (const std::exception& thrown) {
      if (error.empty()) {
        error = "Cannot save " + path + ": " + in_entry(entry.name) + ": " +
                detail::text_of(thrown);
      }
    }
  }
  error = ranks.first_error(error);
  if (!error.empty()) {
    ranks.fail(error);
  }
  auto file = detail::new_dict().toGenericDict();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& object = *entries_[i].object;
    if (const auto* sampler =
            dynamic_cast<const DistributedSampler*>(&object)) {
      values[i] = collect_sampler(*sampler, ranks);
    } else if (object.checkpoint_scope() != CheckpointScope::common) {
      values[i] = list_of(ranks.gather_on_first(values[i].toStringRef()));
    }
    file.insert(entries_[i].name, values[i]);
  }
  file.insert(kEpoch, epoch_);
  file.insert(kStep, step_);
  const detail::RngState rng(modules());
  file.insert(
      kRng, list_of(ranks.gather_on_first(detail::to_bytes(rng.state_dict()))));
  file.insert(kVersion, kFormatVersion);
  return file;
}

void Checkpoint::load(const std::string& path) {
  const Communicator ranks(group_);
  detail::TorchFile file;
  const auto error = read(path, ranks, file);
  if (!error.empty()) {
    ranks.fail(error);
  }
  load(path, file, ranks);
}

std::string Checkpoint::read(const std::string& path,
                             const Communicator& ranks,
                             detail::TorchFile& file) const {
  // A misuse is no damage: a CheckpointFolder must not load an older one.
  ranks.run_on_all([&] {
    if (detail::is_folder(path)) {
      detail::explain("Cannot load " + path,
                      [&] { detail::check_models(entries_); });
    }
  });
  auto error = ranks.try_on_all([&] {
    file = detail::is_folder(path) ? detail::read_sharded_folder(path, entries_)
                                   : detail::read_torch_file(path);
  });
  if (!error.empty()) {
    return error;
  }
  const auto ids = ranks.gather(file.content_id);
  for (size_t rank = 1; rank < ids.size(); ++rank) {
    if (ids[rank] != ids[0]) {
      return "Cannot load " + path + ": rank 0 and rank " +
             std::to_string(rank) +
             " see different files there; put it on a file system that all "
             "ranks share, or copy rank 0's file to every host";
    }
  }
  return "";
}

void Checkpoint::load(const std::string& path,
                      const detail::TorchFile& file,
                      const Communicator& ranks) {
  detail::RngState rng(modules());
  Loaded loaded;
  ranks.run_on_all([&] {
    loaded = detail::explain("Cannot load " + path,
                             [&] { return check(file.value, rng, ranks); });
  });
  epoch_ = loaded.epoch.value_or(epoch_);
  step_ = loaded.step.value_or(step_);
  ranks.run_on_all([&] {
    detail::explain("Cannot load " + path, [&] {
      for (const auto& [object, state] : loaded.states) {
        object->load_state_dict(state);
      }
    });
  });
}

Checkpoint::Loaded Checkpoint::check(const IValue& file,
                                     Stateful& rng,
                                     const Communicator& ranks) const {
  // A file with a model need not be a dict of entries.
  const auto is_model = [](const CheckpointEntry& entry) {
    return entry.name == kModel && entry.module != nullptr;
  };
  const bool has_model =
      std::any_of(entries_.begin(), entries_.end(), is_model);
  const auto model = has_model ? detail::find_state_dict(file) : IValue();
  // In a bare state dict, "epoch" and "rng" are names of tensors.
  const DictReader saved(model.is(file) ? detail::new_dict() : file,
                         "checkpoint");
  const auto version = optional_integer(saved, kVersion);
  TORCH_CHECK(version.value_or(0) <= kFormatVersion,
              "it was written by a newer version of this library");
  Loaded loaded;
  for (const auto& entry : entries_) {
    if (entry.is_loaded) {
      const auto value = is_model(entry) ? model : saved.get(entry.name);
      detail::explain(in_entry(entry.name), [&] {
        auto* object = entry.object.get();
        const auto state =
            state_in(value, entry.name, object->checkpoint_scope(), ranks);
        object->check_state_dict(state);
        loaded.states.emplace_back(object, state);
      });
    }
  }
  // Without a version, a Python program wrote the file, and "rng" has its
  // meaning. The states of another number of ranks are left alone.
  if (version && saved.has_value(kRng) &&
      saved.list(kRng).size() == ranks.size()) {
    const auto state = saved.list(kRng)[ranks.rank()];
    rng.check_state_dict(state);
    loaded.states.emplace_back(&rng, state);
  }
  loaded.epoch = optional_integer(saved, kEpoch);
  loaded.step = optional_integer(saved, kStep);
  return loaded;
}

}  // namespace ddp
