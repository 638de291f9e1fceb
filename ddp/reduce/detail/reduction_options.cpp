#include "ddp/reduce/detail/reduction_options.h"

#include <utility>

#include <c10/util/Exception.h>

namespace ddp::detail {
namespace {

int64_t to_bytes(double mebibytes) {
  return static_cast<int64_t>(mebibytes * 1024 * 1024);
}

}  // namespace

BucketCaps bucket_caps_of(const DistributedDataParallelOptions& options) {
  TORCH_CHECK(
      options.bucket_cap_mb() > 0 && options.first_bucket_cap_mb() > 0,
      "Expected bucket_cap_mb and first_bucket_cap_mb to be positive, but got ",
      options.bucket_cap_mb(),
      " and ",
      options.first_bucket_cap_mb());
  BucketCaps caps;
  for (const double mebibytes : options.bucket_cap_mb_list()) {
    TORCH_CHECK(mebibytes > 0,
                "Expected the sizes in bucket_cap_mb_list to be positive, but "
                "got ",
                options.bucket_cap_mb_list());
    caps.push_back(to_bytes(mebibytes));
  }
  if (caps.empty()) {
    caps = {to_bytes(options.first_bucket_cap_mb()),
            to_bytes(options.bucket_cap_mb())};
  }
  return caps;
}

BucketLayout bucket_layout_of(const Exchange& exchange, int ranks) {
  const int64_t multiple = exchange.multiple_of(ranks);
  TORCH_CHECK(multiple > 0,
              "Expected the exchange's multiple_of to be positive, but got ",
              multiple);
  return {multiple, StatusSums::kNumel, exchange.sums_every_element()};
}

UnusedMode unused_mode_of(const DistributedDataParallelOptions& options) {
  TORCH_CHECK(options.find_unused_parameters() +
                      options.find_unused_on_demand() +
                      options.static_graph() <=
                  1,
              "Expected find_unused_parameters, find_unused_on_demand or "
              "static_graph, but got several; the last where all passes leave "
              "out the same parameters, the first where most leave out some");
  if (options.static_graph()) {
    return UnusedMode::learn;
  }
  if (options.find_unused_parameters()) {
    return UnusedMode::find;
  }
  return options.find_unused_on_demand() ? UnusedMode::find_on_demand
                                         : UnusedMode::refuse;
}

std::vector<NamedParameter> checked_leaves(
    std::vector<NamedParameter> parameters) {
  TORCH_CHECK(!parameters.empty(),
              "Expected at least one parameter that requires a gradient, but "
              "got none; without one the module needs no wrapper");
  for (const auto& [name, tensor, sparse] : parameters) {
    TORCH_CHECK(tensor.requires_grad() && tensor.is_leaf(),
                "Expected parameter ",
                name,
                " to be a leaf that requires a gradient, but it is not");
  }
  return parameters;
}

std::vector<NamedParameter> checked_layouts(
    std::vector<NamedParameter> parameters, const Exchange& exchange) {
  const auto refusal = exchange.refuses_sparse();
  for (const auto& [name, tensor, sparse] : parameters) {
    TORCH_CHECK(
        !sparse || refusal.empty(),
        refusal,
        ", but got the sparse parameter ",
        name,
        "; make its layer with sparse(false), or use AllReduce over Gloo");
  }
  return parameters;
}

}  // namespace ddp::detail
