#include "ddp/checkpoint/detail/sharded_folder.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/Functions.h>

#include "ddp/base/atomic_folder.h"
#include "ddp/checkpoint/detail/safetensors.h"
#include "ddp/checkpoint/detail/sharded_state.h"
#include "ddp/checkpoint/detail/tensor_pieces.h"
#include "ddp/checkpoint/pickle/deferred_tensor.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/state/optimizer_state.h"
#include "ddp/checkpoint/state_dict.h"
#include "ddp/job/error_text.h"
#include "ddp/shard/unit.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using Dict = c10::Dict<IValue, IValue>;
using Pieces = std::vector<TensorPiece>;
using Saved = std::map<std::string, Pieces>;  // by the tensor's name

constexpr const char* kRest = "training.pt";
constexpr const char* kRank = "rank-";
constexpr const char* kOf = "-of-";
constexpr const char* kSuffix = ".safetensors";
constexpr const char* kModel = "model";
constexpr const char* kState = "state";

bool is_own(const std::string& name) {
  return name == kRest || name.ends_with(kSuffix) || name.ends_with(".tmp");
}

/// Returns the end of each file's name in a folder of `files` such files, for
/// 6 files "-of-6.safetensors".
std::string end_of_name(int64_t files) {
  return c10::str(kOf, files, kSuffix);
}

std::string prefix_of(const CheckpointEntry& entry) {
  return entry.name == kModel ? "" : entry.name + ".";
}

/// Equal for parameters of one memory, and for the leaf of a sharded one.
using TensorId = std::tuple<const void*, int64_t, int64_t>;

TensorId id_of(const at::Tensor& tensor) {
  const auto [unit, index] = unit_place_of(tensor);
  const auto& parameter =
      unit != nullptr ? unit->parameters()[index].tensor : tensor;
  return {parameter.storage().unsafeGetStorageImpl(),
          parameter.storage_offset(),
          parameter.numel()};
}

/// A parameter of an optimizer, and the beginning of the names of its states.
using OptimizerParameter = std::pair<at::Tensor, std::string>;

/// Returns an optimizer's parameters in the order of their numbers. A parameter
/// with several names has the first one.
std::vector<OptimizerParameter> parameters_of(
    const CheckpointEntry& optimizer,
    const std::vector<CheckpointEntry>& entries) {
  std::map<TensorId, std::string> names;
  for (const auto& entry : entries) {
    if (entry.module != nullptr) {
      for (const auto& item : state_dict(*entry.module)) {
        names.emplace(id_of(item.value()), prefix_of(entry) + item.key());
      }
    }
  }
  std::vector<OptimizerParameter> parameters;
  for (const auto& group : optimizer.optimizer->param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = names.find(id_of(parameter));
      TORCH_CHECK(found != names.end(),
                  "expected the model of each parameter of \"",
                  optimizer.name,
                  "\" in the Checkpoint; add the model");
      parameters.emplace_back(parameter,
                              optimizer.name + ".state." + found->second + ".");
    }
  }
  return parameters;
}

/// The tensors of each file of this rank.
using Files = std::vector<Pieces>;

/// Adds this rank's pieces of a tensor. A file has at most one of them.
void add_tensor(const std::string& name,
                const IValue& value,
                bool is_first,
                Files& files) {
  Pieces pieces;
  if (const auto deferred = as_deferred(value)) {
    pieces = pieces_of_run(name, deferred->like(), deferred->part());
  } else if (is_first) {
    pieces.push_back({name, origin(value.toTensor().dim()), value.toTensor()});
  }
  files.resize(std::max(files.size(), pieces.size()));
  for (size_t i = 0; i < pieces.size(); ++i) {
    files[i].push_back(std::move(pieces[i]));
  }
}

/// Moves the tensors of models and optimizers from a value to this rank's
/// files.
Files move_tensors(const Dict& value,
                   const std::vector<CheckpointEntry>& entries,
                   bool is_first) {
  Files files(is_first ? 1 : 0);  // each folder has a file
  const auto add_all = [&](const std::string& prefix, const IValue& tensors) {
    for (const auto& item : tensors.toGenericDict()) {
      add_tensor(
          prefix + item.key().toStringRef(), item.value(), is_first, files);
    }
  };
  for (const auto& entry : entries) {
    if (entry.module != nullptr) {
      add_all(prefix_of(entry), value.at(entry.name));
      static_cast<void>(value.erase(entry.name));
    } else if (entry.optimizer != nullptr) {
      const auto mine = value.at(entry.name).toGenericDict();
      const auto parameters = parameters_of(entry, entries);
      for (const auto& state : mine.at(kState).toGenericDict()) {
        const auto id = static_cast<size_t>(state.key().toInt());
        add_all(parameters.at(id).second, state.value());
      }
      mine.insert_or_assign(kState, new_dict());
    }
  }
  return files;
}

/// Reads a tensor of the shape that was saved, with the strides of the
/// parameter `mine` if it has this shape. If it is sharded, or its leaf, only
/// this rank's elements get values.
/// @throws c10::Error if the pieces do not make a tensor.
at::Tensor read_tensor(const Pieces& pieces, const at::Tensor& mine) {
  const auto& name = pieces[0].name;
  const auto dim = pieces[0].elements.dim();
  const auto check = [&](bool is_whole) {
    TORCH_CHECK(is_whole,
                "the parts do not make a whole of \"",
                name,
                "\": a file is missing, or from another save");
  };
  auto sizes = origin(dim);
  for (const auto& piece : pieces) {
    check(piece.elements.dim() == dim);
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] =
          std::max(sizes[i], piece.offsets[i] + piece.elements.sizes()[i]);
    }
  }
  const auto value = whole_parameter(mine);
  const auto deferred = as_deferred(value);
  const auto& like = deferred ? deferred->like() : mine;
  const bool is_like = like.sizes() == sizes;
  const auto options = pieces[0].elements.options();
  const auto tensor =
      is_like ? at::empty_like(like, options) : at::empty(sizes, options);
  auto parts = Pieces{{name, origin(dim), tensor}};
  // Each rank needs the number of steps, a scalar.
  if (is_like && deferred && dim > 0) {
    const auto& [elements, first] = deferred->part();
    parts = pieces_of_run(
        name, like, {tensor.as_strided({elements.numel()}, {1}, first), first});
  }
  for (const auto& part : parts) {
    int64_t missing = part.elements.numel();
    for (const auto& piece : pieces) {
      missing -= copy_common(piece, part);
    }
    check(missing == 0);
  }
  return tensor;
}

/// Names that the model lacks are left alone, as by Python's loader. Python's
/// writer keeps one name of a parameter that has several.
IValue read_model(const Saved& saved, const CheckpointEntry& entry) {
  const auto mine = state_dict(*entry.module);
  const auto is_saved = [&](const auto& item) {
    return saved.count(prefix_of(entry) + item.key()) > 0;
  };
  // torch.distributed.checkpoint.save({"model": ...}) writes the other prefix.
  const auto prefix = std::any_of(mine.begin(), mine.end(), is_saved)
                          ? prefix_of(entry)
                          : entry.name + ".";
  auto result = new_dict().toGenericDict();
  std::map<TensorId, IValue> by_memory;
  for (const auto& item : mine) {
    const auto found = saved.find(prefix + item.key());
    if (found != saved.end()) {
      const auto value = read_tensor(found->second, item.value());
      result.insert(item.key(), value);
      by_memory.emplace(id_of(item.value()), value);
    }
  }
  for (const auto& item : mine) {
    const auto found = by_memory.find(id_of(item.value()));
    if (found != by_memory.end()) {
      result.insert(item.key(), found->second);  // unless it has the name
    }
  }
  return result;
}

/// Returns an optimizer's states.
IValue read_states(const Saved& saved,
                   const std::vector<OptimizerParameter>& parameters) {
  auto states = new_dict();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [parameter, prefix] = parameters[i];
    auto fields = new_dict().toGenericDict();
    for (auto found = saved.lower_bound(prefix);
         found != saved.end() && found->first.starts_with(prefix);
         ++found) {
      fields.insert(found->first.substr(prefix.size()),
                    read_tensor(found->second, parameter));
    }
    if (!fields.empty()) {
      states.toGenericDict().insert(static_cast<int64_t>(i), fields);
    }
  }
  return states;
}

/// Reads the files of safetensors.
/// @param names    of the files in the folder.
/// @param save_id  of the save that wrote training.pt.
Saved read_pieces(const std::string& path,
                  const std::vector<std::string>& names,
                  const std::string& save_id) {
  const auto is_mine = [](const std::string& name) {
    return name.ends_with(kSuffix);
  };
  const auto count = std::count_if(names.begin(), names.end(), is_mine);
  TORCH_CHECK(
      count > 0, "Cannot load ", path, ": it has no files of safetensors");
  Saved saved;
  for (const auto& name : names) {
    if (is_mine(name)) {
      explain("Cannot load " + path + "/" + name, [&] {
        TORCH_CHECK(!name.starts_with(kRank) ||
                        name.find(kOf) == std::string::npos ||
                        name.ends_with(end_of_name(count)),
                    "its folder has ",
                    count,
                    " files of safetensors, and not as many as its name says");
        auto file = read_safetensors(path + "/" + name);
        TORCH_CHECK(
            file.save_id == save_id, "it is from another save than ", kRest);
        for (auto& piece : file.pieces) {
          saved[piece.name].push_back(std::move(piece));
        }
      });
    }
  }
  return saved;
}

}  // namespace

void write_sharded_folder(const std::string& path,
                          Dict value,
                          const std::vector<CheckpointEntry>& entries,
                          const Communicator& ranks) {
  const auto run = [&](const auto& work) {
    ranks.run_on_all([&] { explain("Cannot save " + path, work); });
  };
  const bool is_first = ranks.rank() == 0;
  Files files;
  std::unique_ptr<AtomicFolder> folder;
  run([&] {
    files = move_tensors(value, entries, is_first);
    if (is_first) {
      folder = std::make_unique<AtomicFolder>(path, is_own);
    }
  });
  const auto temporary = ranks.gather(folder ? folder->temporary() : "")[0];
  std::random_device random;
  const auto save_id = ranks.gather(c10::str(random(), '-', random()))[0];
  int64_t count = 0;
  for (const auto& text : ranks.gather(std::to_string(files.size()))) {
    count += std::stoll(text);
  }
  run([&] {
    for (size_t i = 0; i < files.size(); ++i) {
      const auto name =
          c10::str(kRank, ranks.rank(), "-", i, end_of_name(count));
      write_safetensors(temporary + "/" + name, {std::move(files[i]), save_id});
    }
    if (is_first) {
      value.insert(kSaveId, save_id);
      write_torch_file(temporary + "/" + kRest, value);
    }
  });
  run([&] {
    if (is_first) {
      folder->commit();
    }
  });
}

void check_models(const std::vector<CheckpointEntry>& entries) {
  for (const auto& entry : entries) {
    if (entry.optimizer != nullptr) {
      parameters_of(entry, entries);
    }
  }
}

TorchFile read_sharded_folder(const std::string& path,
                              const std::vector<CheckpointEntry>& entries) {
  const auto names = names_in(path);
  const bool is_ours =
      std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return name == kRest || name.starts_with(kRank);
      });
  TorchFile result;
  result.value = new_dict();
  if (is_ours) {
    result = read_torch_file(path + "/" + kRest);
  }
  std::string save_id;
  explain("Cannot load " + path + "/" + kRest, [&] {
    const auto value = result.value.toGenericDict();
    const auto found = value.find(kSaveId);
    save_id = found == value.end() ? "" : found->value().toStringRef();
  });
  const auto saved = read_pieces(path, names, save_id);
  explain("Cannot load " + path, [&] {
    const auto value = result.value.toGenericDict();
    for (const auto& entry : entries) {
      if (entry.module != nullptr) {
        value.insert_or_assign(entry.name, read_model(saved, entry));
      } else if (entry.optimizer != nullptr) {
        if (!is_ours) {
          // Python's writer keeps no options, so the optimizer's own remain.
          value.insert(entry.name, optimizer_to_value(*entry.optimizer));
        }
        const auto rest = value.find(entry.name);
        if (rest != value.end()) {
          rest->value().toGenericDict().insert_or_assign(
              kState, read_states(saved, parameters_of(entry, entries)));
        }
      }
    }
  });
  return result;
}

}  // namespace ddp::detail
