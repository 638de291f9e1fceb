#include "ddp/checkpoint/detail/sharded_folder.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/Functions.h>

#include "ddp/base/atomic_folder.h"
#include "ddp/checkpoint/detail/rectangles.h"
#include "ddp/checkpoint/detail/safetensors.h"
#include "ddp/checkpoint/detail/sharded_state.h"
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
constexpr std::string_view kSuffix = ".safetensors";
constexpr const char* kModel = "model";
constexpr const char* kState = "state";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
         text.substr(text.size() - end.size()) == end;
}

bool is_own(const std::string& name) {
  return name == kRest || ends_with(name, kSuffix) || ends_with(name, ".tmp");
}

std::string file_name(size_t rank, size_t index) {
  return c10::str("rank-", rank, "-", index, kSuffix);
}

std::string prefix_of(const CheckpointEntry& entry) {
  return entry.name == kModel ? "" : entry.name + ".";
}

/// Equal for parameters of one memory, and for the leaf of a sharded one.
using TensorId = std::tuple<const void*, int64_t, int64_t>;

TensorId id_of(const at::Tensor& tensor) {
  const auto place = unit_place_of(tensor);
  return place.unit != nullptr
             ? TensorId(place.unit, static_cast<int64_t>(place.index), -1)
             : TensorId(tensor.storage().unsafeGetStorageImpl(),
                        tensor.storage_offset(),
                        tensor.numel());
}

/// The names of the models' parameters in the files. A parameter with several
/// names has the first one.
class ParameterNames {
 public:
  explicit ParameterNames(const std::vector<CheckpointEntry>& entries) {
    for (const auto& entry : entries) {
      if (entry.module != nullptr) {
        for (const auto& item : state_dict(*entry.module)) {
          names_.emplace(id_of(item.value()), prefix_of(entry) + item.key());
        }
      }
    }
  }

  /// Returns the beginning of the names of a parameter's states.
  std::string states_of(const CheckpointEntry& entry,
                        const at::Tensor& parameter) const {
    const auto found = names_.find(id_of(parameter));
    TORCH_CHECK(found != names_.end(),
                "expected the model of each parameter of \"",
                entry.name,
                "\" in the Checkpoint; add the model");
    return entry.name + ".state." + found->second + ".";
  }

 private:
  std::map<TensorId, std::string> names_;
};

std::vector<at::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(
        parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

/// The files of this rank.
using Files = std::vector<std::vector<TensorPiece>>;

/// Adds this rank's rectangles of a tensor. A file has at most one of them.
void add_tensor(const std::string& name,
                const IValue& value,
                bool is_first,
                Files& files) {
  const auto add =
      [&](size_t file, std::vector<int64_t> offsets, at::Tensor elements) {
        files.resize(std::max(files.size(), file + 1));
        files[file].push_back({name, std::move(offsets), std::move(elements)});
      };
  const auto deferred = as_deferred(value);
  const auto& like = deferred ? deferred->like() : value.toTensor();
  if (!deferred || like.numel() == 0) {
    if (is_first) {
      add(0,
          std::vector<int64_t>(static_cast<size_t>(like.dim()), 0),
          deferred ? deferred->part().elements.view(like.sizes()) : like);
    }
    return;
  }
  const auto& [elements, first] = deferred->part();
  size_t file = 0;
  int64_t begin = elements.storage_offset();
  for (const auto& place : rectangles_of_run(like, first, elements.numel())) {
    add(file++,
        place.offsets,
        elements.as_strided(place.sizes, like.strides(), begin));
    begin += place.numel();
  }
}

/// Moves the tensors of models and optimizers from a value to this rank's
/// files.
Files move_tensors(const Dict& value,
                   const std::vector<CheckpointEntry>& entries,
                   bool is_first) {
  const ParameterNames names(entries);
  Files files;
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
      const auto parameters = parameters_of(*entry.optimizer);
      for (const auto& state : mine.at(kState).toGenericDict()) {
        const auto id = static_cast<size_t>(state.key().toInt());
        add_all(names.states_of(entry, parameters.at(id)), state.value());
      }
      mine.insert_or_assign(kState, new_dict());
    }
  }
  return files;
}

Rectangle rectangle_of(const TensorPiece& piece) {
  return {piece.offsets, piece.elements.sizes().vec()};
}

/// Reads a tensor with the sizes and strides of `of`, or of the parameter of
/// which it is a leaf. Of a sharded parameter only this rank's elements get
/// values.
/// @throws c10::Error if the pieces do not make the tensor.
at::Tensor read_tensor(const Pieces& pieces, const at::Tensor& of) {
  const auto value = whole_parameter(of);
  const auto deferred = as_deferred(value);
  const auto& like = deferred ? deferred->like() : of;
  const Rectangle whole{
      std::vector<int64_t>(static_cast<size_t>(like.dim()), 0),
      like.sizes().vec()};
  const auto dtype = pieces[0].elements.scalar_type();
  const auto check = [&](bool is_whole) {
    TORCH_CHECK(is_whole,
                "the parts do not make a whole of \"",
                pieces[0].name,
                "\", of shape ",
                like.sizes(),
                ": a file is missing, or of another model");
  };
  for (const auto& piece : pieces) {
    const auto place = rectangle_of(piece);
    check(piece.elements.scalar_type() == dtype &&
          piece.elements.dim() == like.dim() &&
          intersection_of(place, whole).sizes == place.sizes);
  }
  auto tensor =
      at::empty_like(like, at::TensorOptions(dtype).device(c10::kCPU));
  auto parts = std::vector{whole};
  if (deferred) {
    const auto& [mine, first] = deferred->part();
    parts = rectangles_of_run(like, first, mine.numel());
  }
  for (const auto& part : parts) {
    int64_t missing = part.numel();
    for (const auto& piece : pieces) {
      const auto place = rectangle_of(piece);
      const auto both = intersection_of(part, place);
      if (both.numel() > 0) {
        narrow_to(tensor, whole, both)
            .copy_(narrow_to(piece.elements, place, both));
        missing -= both.numel();
      }
    }
    check(missing == 0);
  }
  return tensor;
}

const Pieces* find(const Saved& saved,
                   const CheckpointEntry& entry,
                   const std::string& key) {
  // torch.distributed.checkpoint.save({"model": ...}) writes the second name.
  for (const auto& name : {prefix_of(entry) + key, entry.name + "." + key}) {
    const auto found = saved.find(name);
    if (found != saved.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

/// Names that the model lacks are left alone, as by Python's loader. Python's
/// writer keeps one name of a parameter that has several.
IValue read_model(const Saved& saved, const CheckpointEntry& entry) {
  const auto mine = state_dict(*entry.module);
  std::map<TensorId, const Pieces*> found;
  for (const auto& item : mine) {
    if (const auto* pieces = find(saved, entry, item.key())) {
      found.emplace(id_of(item.value()), pieces);
    }
  }
  auto result = new_dict();
  for (const auto& item : mine) {
    const auto* pieces = find(saved, entry, item.key());
    pieces = pieces != nullptr ? pieces : found[id_of(item.value())];
    if (pieces != nullptr) {
      result.toGenericDict().insert(item.key(),
                                    read_tensor(*pieces, item.value()));
    }
  }
  return result;
}

/// @param rest  the optimizer's state without tensors.
IValue read_optimizer(const Saved& saved,
                      const CheckpointEntry& entry,
                      const ParameterNames& names,
                      const IValue& rest) {
  // Python's writer keeps no options, so the optimizer's own remain.
  const auto result =
      (rest.isGenericDict() ? rest : optimizer_to_value(*entry.optimizer))
          .toGenericDict();
  auto states = new_dict();
  const auto parameters = parameters_of(*entry.optimizer);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto prefix = names.states_of(entry, parameters[i]);
    auto fields = new_dict().toGenericDict();
    for (auto found = saved.lower_bound(prefix);
         found != saved.end() &&
         found->first.compare(0, prefix.size(), prefix) == 0;
         ++found) {
      const auto field = found->first.substr(prefix.size());
      // The number of steps is a scalar.
      fields.insert(
          field,
          read_tensor(found->second,
                      field == "step" ? at::scalar_tensor(0) : parameters[i]));
    }
    if (!fields.empty()) {
      states.toGenericDict().insert(static_cast<int64_t>(i), fields);
    }
  }
  result.insert_or_assign(kState, states);
  return result;
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
  run([&] {
    for (size_t i = 0; i < files.size(); ++i) {
      write_safetensors(temporary + "/" + file_name(ranks.rank(), i), files[i]);
    }
    if (is_first) {
      write_torch_file(temporary + "/" + kRest, value);
    }
  });
  const auto counts = ranks.gather_on_first(std::to_string(files.size()));
  run([&] {
    for (size_t rank = 0; is_first && rank < counts.size(); ++rank) {
      const auto file = temporary + "/" + file_name(rank, 0);
      TORCH_CHECK(
          counts[rank] == "0" || ::access(file.c_str(), F_OK) == 0,
          "rank 0 does not see the files that rank ",
          rank,
          " wrote; choose a folder of a file system that all ranks share");
    }
    if (is_first) {
      folder->commit();
    }
  });
}

TorchFile read_sharded_folder(const std::string& path,
                              const std::vector<CheckpointEntry>& entries) {
  TorchFile result;
  Saved saved;
  for (const auto& name : names_in(path)) {
    const auto file = path + "/" + name;
    if (name == kRest) {
      result = read_torch_file(file);
    } else if (ends_with(name, kSuffix)) {
      explain("Cannot load " + file, [&] {
        for (auto& piece : read_safetensors(file)) {
          saved[piece.name].push_back(std::move(piece));
        }
      });
    }
  }
  explain("Cannot load " + path, [&] {
    TORCH_CHECK(!saved.empty(), "it has no tensors in files of safetensors");
    TORCH_CHECK(result.value.isNone() || result.value.isGenericDict(),
                "expected a dict in ",
                kRest,
                ", but got ",
                describe(result.value));
    const auto value = result.value.isNone() ? new_dict().toGenericDict()
                                             : result.value.toGenericDict();
    const ParameterNames names(entries);
    for (const auto& entry : entries) {
      if (entry.module != nullptr) {
        value.insert_or_assign(entry.name, read_model(saved, entry));
      } else if (entry.optimizer != nullptr) {
        const auto found = value.find(entry.name);
        const auto rest = found == value.end() ? IValue() : found->value();
        value.insert_or_assign(entry.name,
                               read_optimizer(saved, entry, names, rest));
      }
    }
    result.value = value;
  });
  return result;
}

}  // namespace ddp::detail
