#include "ddp/checkpoint/detail/variable_entry.h"

#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

using c10::IValue;

IValue value_of(bool* variable) {
  return *variable;
}
IValue value_of(int64_t* variable) {
  return *variable;
}
IValue value_of(double* variable) {
  return *variable;
}
IValue value_of(std::string* variable) {
  return *variable;
}
IValue value_of(at::Tensor* variable) {
  return variable->defined() ? IValue(variable->detach().cpu()) : IValue();
}

CheckpointEntry::Apply read_into(bool* variable,
                                 const DictReader& saved,
                                 const std::string& name) {
  return [variable, value = saved.boolean(name)] { *variable = value; };
}
CheckpointEntry::Apply read_into(int64_t* variable,
                                 const DictReader& saved,
                                 const std::string& name) {
  return [variable, value = saved.integer(name)] { *variable = value; };
}
CheckpointEntry::Apply read_into(double* variable,
                                 const DictReader& saved,
                                 const std::string& name) {
  return [variable, value = saved.number(name)] { *variable = value; };
}
CheckpointEntry::Apply read_into(std::string* variable,
                                 const DictReader& saved,
                                 const std::string& name) {
  const auto value = saved.get(name);
  TORCH_CHECK(value.isString(),
              "expected a text as its checkpoint[\"",
              name,
              "\"], but got ",
              describe(value));
  return [variable, text = value.toStringRef()] { *variable = text; };
}
CheckpointEntry::Apply read_into(at::Tensor* variable,
                                 const DictReader& saved,
                                 const std::string& name) {
  if (!saved.has_value(name)) {
    return [variable] { variable->reset(); };
  }
  const auto value = saved.tensor(name);
  if (!variable->defined()) {
    // Now, because memory for a file's expanded tensor may be missing.
    return [variable, copy = value.clone()] { *variable = copy; };
  }
  TORCH_CHECK(value.sizes() == variable->sizes() &&
                  value.scalar_type() == variable->scalar_type(),
              "expected ",
              variable->scalar_type(),
              variable->sizes(),
              " as its checkpoint[\"",
              name,
              "\"], but got ",
              value.scalar_type(),
              value.sizes());
  return [variable, value] {
    const c10::NoGradGuard no_grad;
    variable->copy_(value);
  };
}

std::string to_bytes(const IValue& value) {
  const auto bytes = torch::jit::pickle_save(value);
  return {bytes.begin(), bytes.end()};
}

IValue from_bytes(const std::string& bytes) {
  return torch::jit::pickle_load({bytes.begin(), bytes.end()});
}

class VariableEntry : public CheckpointEntry {
 public:
  VariableEntry(std::string name, CheckpointVariable variable, bool is_per_rank)
      : name_(std::move(name)),
        variable_(variable),
        is_per_rank_(is_per_rank) {}

  MakeValue collect(const Ranks& ranks,
                    std::optional<size_t> /*trained*/) const override {
    const auto mine = std::visit(
        [](auto* variable) { return value_of(variable); }, variable_);
    if (!is_per_rank_) {
      return [mine] { return mine; };
    }
    return [all = ranks.gather_on_first(to_bytes(mine))] {
      auto list = new_list().toList();
      for (const auto& bytes : all) {
        list.push_back(from_bytes(bytes));
      }
      return IValue(list);
    };
  }

  Apply check(const IValue& saved, RankInfo place) const override {
    const auto value = is_per_rank_ ? value_of_rank(saved, place) : saved;
    auto dict = new_dict().toGenericDict();
    dict.insert(name_, value);
    const DictReader reader(dict, "checkpoint");
    return std::visit(
        [&](auto* variable) { return read_into(variable, reader, name_); },
        variable_);
  }

 private:
  IValue value_of_rank(const IValue& saved, RankInfo place) const {
    TORCH_CHECK(saved.isList() && saved.toListRef().size() == place.size,
                "expected a list with the values of ",
                place.size,
                " ranks as its checkpoint[\"",
                name_,
                "\"], but got ",
                saved.isList()
                    ? "those of " + std::to_string(saved.toListRef().size())
                    : describe(saved),
                "; leave the entry out of the Checkpoint that loads");
    return saved.toListRef()[place.rank];
  }

  std::string name_;
  CheckpointVariable variable_;
  bool is_per_rank_;
};

}  // namespace

std::shared_ptr<CheckpointEntry> entry_of(std::string name,
                                          CheckpointVariable variable,
                                          bool is_per_rank) {
  return std::make_shared<VariableEntry>(
      std::move(name), variable, is_per_rank);
}

}  // namespace ddp::detail
