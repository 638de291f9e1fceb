#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/flat_tensors.h"

namespace dp::detail {

/// How much of each tensor travels: `kNone`, `kWhole`, or so many of its rows.
/// `kKept`: nothing, since what came before it holds.
using Contents = std::vector<int64_t>;
constexpr int64_t kNone = -1;
constexpr int64_t kWhole = -2;
constexpr int64_t kKept = -3;

/// Why these are no contents of a packet for such tensors; "" when they are.
/// Pure.
std::string contents_problem(const std::vector<at::Tensor>& like,
                             const Contents& contents);

/// Rows of tensors that a worker wants: int64 and one-dimensional, undefined
/// for a whole tensor.
using Rows = std::vector<at::Tensor>;

bool any_rows(const Rows& rows);
Contents contents_of(const Rows& rows);

/// The rows' numbers in one flat tensor.
at::Tensor join_rows(const Rows& rows);
/// The rows of such contents in memory of `row_count(contents)` numbers.
Rows split_rows(const at::Tensor& flat, const Contents& contents);
int64_t row_count(const Contents& contents);
/// @throws c10::Error when a tensor has no such row.
void check_rows(const Rows& rows, const std::vector<at::Tensor>& like);

/// Parts of tensors in one flat tensor of CPU memory, so that one message
/// carries them all: whole ones, or rows with their indices.
class Packet {
 public:
  /// @param memory  is taken where it is large enough. Its values stay.
  Packet(const std::vector<at::Tensor>& like,
         Contents contents,
         const at::Tensor& memory = at::Tensor());

  const Contents& contents() const { return contents_; }
  const at::Tensor& flat() const { return memory_.flat(); }
  /// For another packet.
  const at::Tensor& memory() const { return memory_.memory(); }
  /// Bytes of what travels, without what aligns it.
  int64_t bytes() const { return memory_.bytes(); }

  /// What travels of a tensor: itself, or its rows. Undefined: nothing.
  at::Tensor values(size_t tensor) const;
  /// The numbers of the rows. Undefined where none travel.
  at::Tensor rows(size_t tensor) const;
  Rows all_rows() const;

 private:
  Contents contents_;
  FlatTensors memory_;
  std::vector<size_t> first_piece_;  // by tensor
};

/// Copies those rows of the tensors, and the other tensors whole.
void copy_parts(const std::vector<at::Tensor>& from,
                const Rows& rows,
                Packet& to);
/// Copies what is there into the tensors, without a history.
void copy_parts(const Packet& from, const std::vector<at::Tensor>& to);

}  // namespace dp::detail
