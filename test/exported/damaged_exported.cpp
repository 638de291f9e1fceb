// Loads exported models that are damaged, and runs them on inputs of ones:
//
//   damaged_exported load FILE.pt2                 prints the error
//   damaged_exported unguarded FILE.pt2            without a check of guards
//   damaged_exported fuzz COUNT SEED FILE.pt2...   damages the files at random
//
// Input I of a seed is the first input of seed SEED + I. A damaged file is an
// error or runs. Sanitizers find invalid memory; an input that takes a second
// of the CPU ends the program.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <caffe2/serialize/inline_container.h>

#include "ddp/exported_module.h"
#include "test/support/damage.h"
#include "test/support/pickles.h"
#include "test/support/temporary_folder.h"

namespace {

using namespace ddp::test;

constexpr double kLongest = 1;  // second, for an input that takes a millisecond

/// Returns the error, or "".
std::string load_and_run(const std::string& path, bool check_guards = true) {
  try {
    ddp::ExportedModule net(
        path, ddp::ExportedModuleOptions().check_guards(check_guards));
    net->forward(at::ones({8, 6}));
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// A JSON text in pieces: strings, words, numbers and punctuation.
struct Json {
  struct Value {
    size_t begin;
    size_t end;
    char kind;  // its first character, '0' for words and numbers, 'k' for keys
  };

  std::vector<std::string> tokens;
  std::vector<Value> values;  // and keys

  explicit Json(const std::string& text) {
    const std::string breaks = "[]{}:,\" \n";
    std::vector<size_t> open;
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
      const char first = text[at];
      end = first == '"' ? text.find('"', at + 1) + 1
            : breaks.find(first) == std::string::npos
                ? text.find_first_of(breaks, at)
                : at + 1;
      tokens.push_back(text.substr(at, end - at));
      if (first == '{' || first == '[') {
        open.push_back(values.size());
      }
      if (first == ':') {
        values.back().kind = 'k';
      } else if (first == '}' || first == ']') {
        values[open.back()].end = tokens.size();
        open.pop_back();
      } else if (std::string(", \n").find(first) == std::string::npos) {
        values.push_back(
            {tokens.size() - 1,
             tokens.size(),
             breaks.find(first) == std::string::npos ? '0' : first});
      }
    }
  }

  std::string text_of(const Value& value) const {
    return std::accumulate(tokens.begin() + static_cast<ptrdiff_t>(value.begin),
                           tokens.begin() + static_cast<ptrdiff_t>(value.end),
                           std::string());
  }
};

/// Returns a text, in quotes, with other pieces of an expression over sizes.
std::string damaged_text(std::string text, Random& random) {
  static const std::vector<std::string> pieces{
      "(",     ")",      "[",          "]",    "'",          ",",   " not ",
      " and ", " if ",   " else ",     "-",    "**",         "%",   " // ",
      "==",    "L['x']", ".size()[0]", "9",    "0",          "1e9", "max(",
      "math.", ".",      "\\\\",       "\\\"", "Symbol('s0'"};
  for (size_t times = below(random, 3) + 1; times > 0; --times) {
    const auto at = 1 + below(random, text.size() - 1);
    const auto count = std::min(below(random, 4), text.size() - 1 - at);
    std::string piece;
    for (size_t i = below(random, 50) == 0 ? 1000 : 1; i > 0; --i) {
      piece += any_of(pieces, random);
    }
    text.replace(at, count, piece);
  }
  return text;
}

/// Returns a JSON text with one to three other values.
std::string damaged_json(const Json& json, Random& random) {
  static const std::vector<std::string> others{"null",
                                               "-1",
                                               "0",
                                               "9223372036854775807",
                                               "1e308",
                                               "[]",
                                               "{}",
                                               "\"\"",
                                               "true",
                                               "\"x\"",
                                               "[[[[]]]]",
                                               "{\"as_int\": 3}"};
  const auto other_for = [&](const Json::Value& value) -> std::string {
    switch (value.kind == 'k' ? 9 : below(random, 10)) {
      case 0:
        return random() % 2 == 0 ? "" : any_of(json.tokens, random);
      case 1:
      case 2:
        return any_of(others, random);
      case 3:
        return json.text_of(any_of(json.values, random));
      case 4:
      case 5:
        if (value.kind == '"') {
          return damaged_text(json.text_of(value), random);
        }
        [[fallthrough]];
      default:
        for (;;) {
          const auto& other = any_of(json.values, random);
          if (other.kind == value.kind) {
            return json.text_of(other);
          }
        }
    }
  };
  std::map<size_t, std::pair<size_t, std::string>> changes;
  for (size_t times = below(random, 3) + 1; times > 0; --times) {
    const auto& value = any_of(json.values, random);
    changes[value.begin] = {value.end, other_for(value)};
  }
  std::string text;
  for (size_t i = 0; i < json.tokens.size();) {
    const auto change = changes.find(i);
    text += change == changes.end() ? json.tokens[i] : change->second.second;
    i = change == changes.end() ? i + 1 : change->second.first;
  }
  return text;
}

/// A file of torch.export.save.
struct File {
  std::string bytes;
  Records records;
  std::vector<std::pair<size_t, Json>> texts;  // by the numbers of records

  explicit File(const std::string& path) : bytes(read_file(path)) {
    caffe2::serialize::PyTorchStreamReader reader(path);
    for (const auto& name : reader.getAllRecords()) {
      // The writer itself adds these records.
      if (name == "version" || name.rfind(".data/", 0) == 0) {
        continue;
      }
      const auto [data, size] = reader.getRecord(name);
      const std::string record(static_cast<const char*>(data.get()), size);
      if (name == "models/model.json" ||
          name == "data/weights/model_weights_config.json") {
        texts.emplace_back(records.size(), Json(record));
      }
      records.emplace_back(name, record);
    }
  }
};

/// Returns a file with damage in its bytes, or, in most cases, with check sums
/// that fit and damage in a JSON text.
std::string damaged(const File& file, Random& random) {
  if (below(random, 8) == 0) {
    auto bytes = file.bytes;
    damage(bytes, random, {std::string(8, '\xFF'), std::string(4, '\0')});
    return bytes;
  }
  auto records = file.records;
  const auto& [number, json] = any_of(file.texts, random);
  records[number].second = damaged_json(json, random);
  return zip_of(records);
}

int fuzz(size_t count, size_t seed, const std::vector<std::string>& paths) {
  const std::vector<File> files(paths.begin(), paths.end());
  const TemporaryFolder folder;
  const auto path = folder / "x.pt2";
  size_t refused = 0;
  double longest = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 1000 == 0) {
      std::fprintf(stderr, "seed %zu\n", seed + i);
    }
    Random random(seed + i);
    write_file(path, damaged(any_of(files, random), random));
    ::alarm(60);
    const auto start = std::clock();
    refused += load_and_run(path).empty() ? 0 : 1;
    const auto seconds =
        static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    longest = std::max(longest, seconds);
    if (seconds > kLongest) {
      std::printf("seed %zu takes %.1f s\n", seed + i, seconds);
      return 1;
    }
  }
  std::printf("seed %zu, %zu inputs: %zu refused; the longest took %.0f ms\n",
              seed,
              count,
              refused,
              longest * 1e3);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] != "fuzz") {
    const bool check_guards = arguments[0] == "load";
    std::printf("%s", load_and_run(arguments[1], check_guards).c_str());
    return 0;
  }
  if (arguments.size() > 3 && arguments[0] == "fuzz") {
    return fuzz(std::stoull(arguments[1]),
                std::stoull(arguments[2]),
                {arguments.begin() + 3, arguments.end()});
  }
  std::fprintf(stderr, "usage: damaged_exported load FILE | fuzz ...\n");
  return 2;
}
