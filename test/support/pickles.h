#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <caffe2/serialize/inline_container.h>

// Parts of pickles, in the order in which Python writes them, and complete
// files.
namespace ddp::test {

/// Returns the bytes of a number, little endian.
template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

inline std::string pickle_of(const std::string& value, int protocol = 2) {
  return "\x80" + raw(static_cast<uint8_t>(protocol)) + value + ".";
}

inline std::string pickled(const std::string& text) {
  return "X" + raw(static_cast<uint32_t>(text.size())) + text;
}
inline std::string pickled(int32_t value) {
  return "J" + raw(value);
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string result = "(";
  for (const auto& item : items) {
    result += item;
  }
  return result + "t";
}
inline std::string call(const std::string& function,
                        const std::vector<std::string>& arguments) {
  return function + tuple(arguments) + "R";
}
inline std::string dict(const std::vector<std::string>& keys_and_values) {
  std::string result = "}(";
  for (const auto& item : keys_and_values) {
    result += item;
  }
  return result + "u";
}
inline std::string repeat(const std::string& part, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) {
    result += part;
  }
  return result;
}

inline std::string storage(const std::string& type,
                           const std::string& key,
                           int32_t count) {
  return tuple({pickled("storage"),
                global("torch", type),
                pickled(key),
                pickled("cpu"),
                pickled(count)}) +
         "Q";
}

/// Returns the arguments of _rebuild_tensor_v2 for a vector of the whole
/// storage "0".
inline std::vector<std::string> tensor_arguments(const std::string& type,
                                                 int32_t count) {
  return {storage(type, "0", count),
          pickled(0),
          tuple({pickled(count)}),
          tuple({pickled(1)}),
          "\x89",
          call(global("collections", "OrderedDict"), {})};
}

inline std::string tensor(const std::string& type, int32_t count) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              tensor_arguments(type, count));
}

using Records = std::vector<std::pair<std::string, std::string>>;

/// Returns a file in the format of torch.save.
/// @param alignment  of the records' bytes; torch.save's by default.
inline std::string zip_of(const Records& records,
                          bool check_sums = true,
                          uint64_t alignment = 64) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter archive(
      [&bytes](const void* data, size_t size) {
        bytes.append(static_cast<const char*>(data), size);
        return size;
      },
      check_sums,
      alignment);
  for (const auto& [name, data] : records) {
    archive.writeRecord(name, data.data(), data.size());
  }
  archive.writeEndOfFile();
  return bytes;
}

/// Returns the start of a file in the format before PyTorch 1.6.
inline std::string legacy_start(int protocol = 2) {
  const std::string frame = protocol > 3 ? "\x95" + raw(uint64_t{13}) : "";
  return pickle_of(frame + "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
                   protocol);
}

}  // namespace ddp::test
