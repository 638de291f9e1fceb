#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace samples::test {

/// Writes a file of these bytes.
void write(const std::filesystem::path& file,
           const std::vector<uint8_t>& bytes);
void write(const std::filesystem::path& file, const std::string& text);

/// Packs a file as gzip does: FILE becomes FILE.gz.
void gzip(const std::filesystem::path& file);

}  // namespace samples::test
