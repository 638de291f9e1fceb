#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fake_gpu {

bool contains(std::string_view text, std::string_view part);
bool starts_with(std::string_view text, std::string_view start);

/// Returns the template arguments of the first `what<...>` in a C++ name; empty
/// if there is none.
///
/// Example: template_arguments("f<a<int>, b>(c)", "f") is {"a<int>", "b"}.
std::vector<std::string> template_arguments(std::string_view name,
                                            std::string_view what);

}  // namespace fake_gpu
