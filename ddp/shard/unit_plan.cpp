#include "ddp/shard/unit_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ddp::detail {
namespace {

int64_t rounded_up(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

int64_t bytes_of(const ShardSpec& parameter) {
  return parameter.numel *
         static_cast<int64_t>(c10::elementSize(parameter.dtype));
}

}  // namespace

std::vector<UnitPlan> plan_units(const std::vector<ShardSpec>& parameters,
                                 int64_t cap_bytes,
                                 int ranks) {
  struct Open {
    size_t unit;
    int64_t bytes;
    int64_t most;
  };
  std::vector<UnitPlan> units;
  std::vector<int64_t> ends;  // of the units, in elements
  std::map<std::pair<c10::ScalarType, bool>, Open> open;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    const int64_t bytes = bytes_of(parameter);
    const auto [last, is_new] = open.try_emplace(
        {parameter.dtype, parameter.trains}, Open{units.size(), 0, 0});
    auto& [unit, unit_bytes, most] = last->second;
    if (is_new || unit_bytes + bytes > most) {
      unit = units.size();
      unit_bytes = 0;
      most = std::max(cap_bytes, bytes) + cap_bytes / 8;
      units.push_back({{}, {}, 0, parameter.trains});
      ends.push_back(0);
    }
    unit_bytes += bytes;
    units[unit].parameters.push_back(i);
    units[unit].offsets.push_back(ends[unit]);
    // Parameters without elements also have places of their own, by which
    // `unit_place_of` tells them apart.
    ends[unit] += rounded_up(std::max<int64_t>(parameter.numel, 1), kUnitAlign);
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].slab =
        rounded_up(std::max<int64_t>(ends[unit], 1), kSlabAlign * ranks) /
        ranks;
  }
  return units;
}

int64_t default_unit_cap(int64_t parameter_bytes) {
  constexpr int64_t kMebibyte = int64_t{1} << 20;
  return std::clamp(parameter_bytes / 16, kMebibyte, 50 * kMebibyte);
}

}  // namespace ddp::detail
