#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace samples::test {

/// Writes a file with these bytes.
void write(const std::filesystem::path& file,
           const std::vector<uint8_t>& bytes);
void write(const std::filesystem::path& file, const std::string& text);

/// Compresses a file like gzip: FILE becomes FILE.gz.
void gzip(const std::filesystem::path& file);

}  // namespace samples::test
