#include "ddp/exchanges/detail/bucket_text.h"

#include <algorithm>

namespace ddp::detail {

std::string bucket_text(const GradientBucket& bucket) {
  return "gradient bucket " + std::to_string(bucket.index + 1) + " of " +
         std::to_string(bucket.count);
}

std::string bucket_text_with_names(const GradientBucket& bucket) {
  constexpr size_t kNames = 3;
  std::string text = bucket_text(bucket);
  const char* separator = " (";
  for (const auto& parameter :
       bucket.parameters.slice(0, std::min(kNames, bucket.parameters.size()))) {
    text += separator + parameter.name;
    separator = ", ";
  }
  if (bucket.parameters.size() > kNames) {
    text +=
        " and " + std::to_string(bucket.parameters.size() - kNames) + " more";
  }
  return bucket.parameters.empty() ? text : text + ")";
}

}  // namespace ddp::detail
