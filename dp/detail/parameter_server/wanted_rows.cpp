#include "dp/detail/parameter_server/wanted_rows.h"

#include <tuple>

#include <ATen/ops/_unique.h>
#include <c10/core/ScalarType.h>

namespace dp::detail {
namespace {

at::Tensor unique_rows(const at::Tensor& numbers) {
  TORCH_CHECK(numbers.defined() && at::isIntegralType(numbers.scalar_type(),
                                                      /*includeBool=*/false),
              "Expected the numbers of rows as a tensor of integers");
  return std::get<0>(at::_unique(numbers.detach().to(at::kCPU, at::kLong)));
}

}  // namespace

std::vector<Rows> wanted_rows(
    const std::vector<ParameterRows>& rows,
    const std::vector<std::vector<at::Tensor>>& shards) {
  std::vector<Rows> result;
  for (const auto& shard : shards) {
    result.emplace_back(shard.size());
  }
  for (const auto& [parameter, numbers] : rows) {
    at::Tensor* place = nullptr;
    for (size_t server = 0; server < result.size(); ++server) {
      for (size_t i = 0; i < result[server].size(); ++i) {
        if (shards[server][i].is_same(parameter)) {
          place = &result[server][i];
        }
      }
    }
    TORCH_CHECK(place != nullptr && parameter.dim() > 0,
                "Expected rows of a parameter of the module that requires a "
                "gradient and has rows, but got those of another tensor");
    *place = unique_rows(numbers);
  }
  for (size_t server = 0; server < result.size(); ++server) {
    check_rows(result[server], shards[server]);
  }
  return result;
}

}  // namespace dp::detail
