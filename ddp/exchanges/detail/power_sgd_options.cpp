#include "ddp/exchanges/detail/power_sgd_options.h"

#include <cmath>

#include "ddp/job/text_collectives.h"

namespace ddp::detail {
namespace {

std::string text_of_options(const PowerSGDOptions& options) {
  return c10::str("rank ",
                  options.rank(),
                  ", min_compression_rate ",
                  options.min_compression_rate(),
                  ", error_feedback ",
                  options.error_feedback(),
                  ", warm_start ",
                  options.warm_start(),
                  ", orthogonalization_epsilon ",
                  options.orthogonalization_epsilon(),
                  ", seed ",
                  options.seed());
}

}  // namespace

const PowerSGDOptions& checked(const PowerSGDOptions& options) {
  TORCH_CHECK(options.rank() > 0,
              "Expected the rank of PowerSGD to be positive, but got ",
              options.rank());
  const double rate = options.min_compression_rate();
  TORCH_CHECK(std::isfinite(rate) && rate > 0,
              "Expected min_compression_rate of PowerSGD to be positive, but "
              "got ",
              rate);
  const double epsilon = options.orthogonalization_epsilon();
  TORCH_CHECK(std::isfinite(epsilon) && epsilon >= 0,
              "Expected orthogonalization_epsilon of PowerSGD to be a number "
              "that is not negative, but got ",
              epsilon);
  return options;
}

void expect_same_options(c10d::Backend& group,
                         c10::Device device,
                         const PowerSGDOptions& options) {
  const auto texts = all_gather_text(group, device, text_of_options(options));
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    TORCH_CHECK(texts[rank] == texts[0],
                "Expected the same options of PowerSGD on all ranks, but got ",
                texts[0],
                " on rank 0 and ",
                texts[rank],
                " on rank ",
                rank);
  }
}

}  // namespace ddp::detail
