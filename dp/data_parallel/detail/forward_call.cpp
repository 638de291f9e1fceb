#include "dp/data_parallel/detail/forward_call.h"

namespace dp::detail {
namespace {

void expect_alike(const std::string& first,
                  const std::string& other,
                  size_t part) {
  TORCH_CHECK(first == other,
              "Expected replicas to return results alike, but got ",
              first,
              " first and ",
              other,
              " from part ",
              part);
}

std::string kind_of(const at::Tensor& tensor) {
  return tensor.defined() ? "a tensor" : "an undefined tensor";
}

}  // namespace

std::vector<std::vector<at::Tensor>> leaves_by_place(
    const std::vector<PartResult>& parts) {
  const auto& first = parts.front();
  std::vector<std::vector<at::Tensor>> places(first.leaves.size());
  for (size_t part = 0; part < parts.size(); ++part) {
    const auto& [leaves, structure] = parts[part];
    // Compare the structures element by element: a mismatch is reported before
    // any difference in the elements after it.
    for (size_t i = 0; i < first.structure.size(); ++i) {
      expect_alike(first.structure[i], structure.at(i), part);
    }
    expect_alike(c10::str(first.leaves.size(), " tensors"),
                 c10::str(leaves.size(), " tensors"),
                 part);
    for (size_t i = 0; i < leaves.size(); ++i) {
      expect_alike(kind_of(first.leaves[i]), kind_of(leaves[i]), part);
      places[i].push_back(leaves[i]);
    }
  }
  return places;
}

}  // namespace dp::detail
