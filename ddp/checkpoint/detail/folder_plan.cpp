#include "ddp/checkpoint/detail/folder_plan.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>

#include <c10/util/Exception.h>

#include "ddp/base/text/number.h"

namespace ddp::detail {
namespace {

constexpr std::string_view kStart = "step-";
constexpr std::string_view kExtension = ".pt";
constexpr std::string_view kTemporary = ".tmp";

bool is_leftover(std::string_view file) {
  return file.size() > kTemporary.size() &&
         file.substr(file.size() - kTemporary.size()) == kTemporary &&
         step_of(file.substr(0, file.size() - kTemporary.size()));
}

using BySteps = std::map<int64_t, std::string, std::greater<>>;

BySteps by_steps(const std::vector<std::string>& files) {
  BySteps found;
  for (const auto& file : files) {
    if (const auto step = step_of(file)) {
      found.emplace(*step, file);
    }
  }
  return found;
}

}  // namespace

std::optional<int64_t> step_of(std::string_view file) {
  if (file.size() <= kStart.size() + kExtension.size()) {
    return std::nullopt;
  }
  const auto digits = file.substr(
      kStart.size(), file.size() - kStart.size() - kExtension.size());
  const auto step = parse_number<int64_t>(digits);
  return step && *step >= 0 && file == checkpoint_name(*step) ? step
                                                              : std::nullopt;
}

std::string checkpoint_name(int64_t step) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step-%09" PRId64 ".pt", step);
  return name.data();
}

std::vector<std::string> checkpoints_in(const std::vector<std::string>& files) {
  std::vector<std::string> latest_first;
  for (const auto& [step, file] : by_steps(files)) {
    latest_first.push_back(file);
  }
  return latest_first;
}

SavePlan plan_save(const std::vector<std::string>& files,
                   const std::set<std::string>& unsound,
                   int64_t step,
                   size_t keep_last) {
  TORCH_CHECK(step >= 0, "expected a step of at least 0, but got ", step);
  SavePlan plan;
  std::copy_if(
      files.begin(), files.end(), std::back_inserter(plan.before), is_leftover);
  size_t kept = 1;  // the new one
  for (const auto& [other, file] : by_steps(files)) {
    if (other == step) {
      continue;
    }
    const bool is_sound = unsound.count(file) == 0;
    TORCH_CHECK(!is_sound || other < step,
                "expected a step after those in the folder, but got step ",
                step,
                " and there is ",
                file,
                ": load it, remove it, or save to another folder");
    if (!is_sound || ++kept > keep_last) {
      plan.after.push_back(file);
    }
  }
  return plan;
}

}  // namespace ddp::detail
