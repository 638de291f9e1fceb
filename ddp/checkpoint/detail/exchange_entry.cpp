#include "ddp/checkpoint/detail/exchange_entry.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/jit/serialization/pickle.h>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using ExchangeState = std::map<std::string, at::Tensor>;

std::string state_to_bytes(const ExchangeState& state) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, value] : state) {
    dict.insert(name, value.cpu());
  }
  const auto bytes = torch::jit::pickle_save(dict);
  return {bytes.begin(), bytes.end()};
}

IValue state_from_bytes(const std::string& bytes) {
  const auto loaded = torch::jit::pickle_load({bytes.begin(), bytes.end()});
  auto dict = new_dict().toGenericDict();
  for (const auto& item : loaded.toGenericDict()) {
    dict.insert(item.key(), item.value());
  }
  return dict;
}

class ExchangeEntry : public CheckpointEntry {
 public:
  explicit ExchangeEntry(std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)) {}

  MakeValue collect(const Ranks& ranks,
                    std::optional<size_t> /*trained*/) const override {
    return [all = ranks.gather_on_first(state_to_bytes(exchange_->state()))] {
      auto list = new_list().toList();
      for (const auto& bytes : all) {
        list.push_back(state_from_bytes(bytes));
      }
      return IValue(list);
    };
  }

  Apply check(const IValue& saved, RankInfo place) const override {
    TORCH_CHECK(saved.isList() && !saved.toListRef().empty(),
                "expected a list of the ranks' states of an exchange, but got ",
                describe(saved));
    const auto states = saved.toListRef();
    const DictReader mine(states[place.rank % states.size()], "exchange");
    ExchangeState state;
    for (const auto& item : mine.entries()) {
      TORCH_CHECK(item.key().isString(),
                  "expected texts as keys of an exchange's state, but got ",
                  describe(item.key()));
      const auto& name = item.key().toStringRef();
      state.emplace(name, mine.tensor(name));
    }
    exchange_->check_state(state);
    return [exchange = exchange_, state] { exchange->load_state(state); };
  }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::shared_ptr<CheckpointEntry> entry_of(std::shared_ptr<Exchange> exchange) {
  TORCH_CHECK(exchange != nullptr, "Expected an exchange, but got none");
  return std::make_shared<ExchangeEntry>(std::move(exchange));
}

}  // namespace ddp::detail
