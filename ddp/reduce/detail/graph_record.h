#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddp::detail {

/// How often the gradient of each parameter comes in a backward pass: counted
/// in the first pass, expected in every later one. Knows nothing of ranks.
class GraphRecord {
 public:
  explicit GraphRecord(size_t parameters);

  /// Whether the first pass has ended.
  bool is_known() const { return is_known_; }

  /// A gradient has come. True when it was the last one of its parameter in
  /// this pass, which only a known graph tells.
  bool add(size_t index);

  /// Ends the first pass. Returns the parameters whose gradient has come, in
  /// the order in which the last one of each did.
  std::vector<size_t> learn();

  /// Of a known graph: the parameters without a gradient, in ascending order.
  const std::vector<size_t>& unused() const { return unused_; }

  struct Change {
    size_t index;
    int64_t expected;
    int64_t came;
  };
  /// Of a known graph, at the end of a pass: what differs in it.
  std::vector<Change> changes() const;

  /// Ready for the next pass.
  void reset();

 private:
  bool is_known_ = false;
  std::vector<int64_t> expected_;  // while learning: nothing
  std::vector<int64_t> came_;
  std::vector<size_t> last_;  // while learning: by when the last one came
  std::vector<size_t> unused_;
};

}  // namespace ddp::detail
