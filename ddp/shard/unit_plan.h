#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

namespace ddp::detail {

/// The properties of a parameter that decide its unit.
struct ShardSpec {
  int64_t numel = 0;
  c10::ScalarType dtype = c10::kFloat;
  bool trains = true;
};

/// Parameters of one unit: one dtype, all trained or all frozen.
struct UnitPlan {
  std::vector<size_t> parameters;  ///< indices, ascending
  std::vector<int64_t> offsets;    ///< of their first elements in the unit
  int64_t slab = 0;                ///< elements of one rank
  bool trains = true;
};

/// Each parameter begins at a multiple of this number of elements, because
/// kernels of LibTorch expect aligned memory.
inline constexpr int64_t kUnitAlign = 64;
/// A slab has a multiple of this number of elements: whole pages for every
/// dtype.
inline constexpr int64_t kSlabAlign = 4096;

/// Pure: divides parameters into units, in their order. A unit ends before the
/// parameter that would make it larger than the cap, or than its first
/// parameter if that one is larger, by more than an eighth of the cap. So a
/// large weight and its bias are one unit.
/// @param cap_bytes  positive.
/// @param ranks  number of slabs.
std::vector<UnitPlan> plan_units(const std::vector<ShardSpec>& parameters,
                                 int64_t cap_bytes,
                                 int ranks);

/// Pure: the cap of a program that asks for none: a sixteenth of all
/// parameters, from 1 to 50 MiB. A step needs memory for the gradients of two
/// units on each rank; more units cost more sums.
int64_t default_unit_cap(int64_t parameter_bytes);

}  // namespace ddp::detail
