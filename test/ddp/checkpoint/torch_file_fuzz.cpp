// Damages files and pickles of torch.save at random and reads them:
//   torch_file_fuzz [COUNT [SEED [FILE...]]]
// FILE: more files of torch.save to damage, such as Python's. Each input is
// refused with a short error, or yields the saved value if check sums
// protect it. Fails on any other exception and on any other value, and ends if
// an input takes a minute; sanitizers find the rest.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <caffe2/serialize/inline_container.h>

#include "ddp/checkpoint/pickle/pickler.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/checkpoint/pickle/unpickler.h"
#include "test/support/damage.h"
#include "test/support/fuzzer.h"
#include "test/support/pickles.h"
#include "test/support/same_value.h"
#include "test/support/temporary_folder.h"

namespace {

using namespace ddp::test;

/// Returns replacements for lengths and numbers in a file, and opcodes of
/// pickles.
const std::vector<std::string>& texts() {
  using namespace std::string_literals;
  static const auto all = [] {
    std::vector<std::string> texts{raw(UINT32_MAX),
                                   raw(INT32_MAX),
                                   raw(UINT64_MAX),
                                   raw(INT64_MAX),
                                   raw(uint64_t{1} << 40),
                                   raw(uint16_t{0xFFFF}),
                                   raw(uint32_t{0}),
                                   "q\0"s,
                                   "h\0"s,
                                   "h\x01"};
    for (const char op : "RbQ\x81us(t)\x85\x86\x87}]aeN\x88\x93\x94\x90."s) {
      texts.emplace_back(1, op);
    }
    return texts;
  }();
  return all;
}

/// Reads all memory of a value, so that sanitizers find invalid memory. Reads a
/// container once, although others share it.
class Walk {
 public:
  size_t read(const c10::IValue& value) {
    size_t sum = 1;
    if (value.isTensor()) {
      sum += read(value.toTensor());
    } else if (value.isString()) {
      sum += value.toStringRef().size();
    } else if (value.isList() && is_new(value)) {
      for (const c10::IValue& item : value.toListRef()) {
        sum += read(item);
      }
    } else if (value.isTuple() && is_new(value)) {
      for (const auto& item : value.toTupleRef().elements()) {
        sum += read(item);
      }
    } else if (value.isGenericDict() && is_new(value)) {
      for (const auto& item : value.toGenericDict()) {
        sum += read(item.value());
      }
    }
    return sum;
  }

 private:
  static size_t read(const at::Tensor& tensor) {
    size_t sum = 0;
    const auto* bytes = static_cast<const uint8_t*>(tensor.storage().data());
    for (size_t i = 0; i < tensor.storage().nbytes(); ++i) {
      sum += bytes[i];
    }
    // A tensor with strides of 0 may have any number of elements.
    return tensor.numel() < 1000 ? sum + tensor.clone().nbytes() : sum;
  }

  bool is_new(const c10::IValue& container) {
    return seen_.insert(container.internalToPointer()).second;
  }

  std::unordered_set<const void*> seen_;
};

/// Returns the contents of a checkpoint.
c10::IValue checkpoint() {
  auto model = ddp::detail::new_dict();
  model.toGenericDict().insert("fc.weight", at::arange(12.0F).view({3, 4}));
  model.toGenericDict().insert("fc.scale", at::ones({3}, at::kFloat8_e4m3fn));
  model.toGenericDict().insert("fc.phase",
                               at::ones({3}, at::kComplexFloat).conj());
  auto ids = ddp::detail::new_list();
  ids.toList().push_back(int64_t{0});
  auto group = ddp::detail::new_dict();
  group.toGenericDict().insert("lr", 0.1);
  group.toGenericDict().insert("betas",
                               c10::ivalue::Tuple::create({0.9, 0.99}));
  group.toGenericDict().insert("params", ids);
  auto result = ddp::detail::new_dict();
  result.toGenericDict().insert("model", model);
  result.toGenericDict().insert("optimizer", group);
  result.toGenericDict().insert("epoch", int64_t{1} << 40);
  return result;
}

/// Returns pickles with every opcode and every call that the reader supports.
std::vector<std::string> pickles() {
  using namespace std::string_literals;
  auto conj = tensor_arguments("ComplexFloatStorage", 4);
  conj.push_back(dict({pickled("conj"), "\x88", pickled("neg"), "\x88"}));
  auto typed = tensor_arguments("ByteStorage", 4);
  typed.push_back(global("torch", "float8_e4m3fn"));
  return {pickle_of(ddp::detail::pickle(checkpoint()).bytes.substr(2)),
          pickle_of(dict({pickled("a"),
                          tensor("FloatStorage", 4),
                          "K\x01",
                          tensor("LongStorage", 2)})),
          pickle_of(call(global("torch._utils", "_rebuild_tensor_v2"), conj)),
          pickle_of(call(global("torch._utils", "_rebuild_tensor_v3"), typed)),
          pickle_of(call(global("torch._tensor", "_rebuild_from_type_v2"),
                         {global("torch._utils", "_rebuild_tensor_v2"),
                          global("torch", "Tensor"),
                          tuple(tensor_arguments("HalfStorage", 4)),
                          "}"})),
          pickle_of(call(global("torch._utils", "_rebuild_parameter"),
                         {tensor("FloatStorage", 4), "\x88", "}"}) +
                    call(global("__builtin__", "complex"),
                         {"G" + raw(0.5), "G" + raw(2.0)}) +
                    call(global("collections", "Counter"),
                         {dict({pickled("a"), "M\x02\x01"})}) +
                    call(global("collections", "defaultdict"),
                         {global("__builtin__", "list")}) +
                    "B" + raw(uint32_t{2}) + "hi" + "C\x02hi" + "\x8b" +
                    raw(uint32_t{2}) + "hi" + "\x8a\x02hi\x87\x87\x87"),
          pickle_of("}(" + pickled("b") + "}q\x01ub"),
          pickle_of(repeat("]q\x01", 20) + repeat("\x85"s
                                                  "a",
                                                  19)),
          pickle_of("\x95"s + raw(uint64_t{9}) +
                        "\x8c\x0b"s
                        "collections\x8c\x0bOrderedDict\x93\x94)R(\x8c\x01"s
                        "aK\x05\x8e" +
                        raw(uint64_t{2}) + "hi\x8f(K\x01\x90\x96" +
                        raw(uint64_t{2}) + "hi(K\x01\x91u",
                    5)};
}

Records records_of(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader file(path);
  Records records;
  for (const auto& name : file.getAllRecords()) {
    const auto [data, size] = file.getRecord(name);
    // The writer adds these itself.
    if (name != "version" && name != ".data/serialization_id") {
      records.emplace_back(
          name, std::string(static_cast<const char*>(data.get()), size));
    }
  }
  return records;
}

std::string& pickle_in(Records& records) {
  return std::find_if(records.begin(),
                      records.end(),
                      [](const auto& item) { return item.first == "data.pkl"; })
      ->second;
}

bool is_zip(const std::string& bytes) {
  return bytes.rfind("PK\x03\x04", 0) == 0;
}

std::string any_splice(const std::vector<std::string>& files, Random& random) {
  const auto& start = any_of(files, random);
  const auto& end = any_of(files, random);
  return start.substr(0, below(random, start.size())) +
         end.substr(below(random, end.size()));
}

/// The inputs and their outcomes.
class Fuzz {
 public:
  Fuzz(size_t seed, const std::vector<std::string>& files)
      : random_(seed), path_(folder_ / "x.pt"), saved_(checkpoint()) {
    ddp::detail::write_torch_file(path_, saved_);
    checked_ = read_file(path_);
    whole_ = {checked_, legacy_start() + pickle_of("N")};
    contents_ = {records_of(path_),
                 {{"data.pkl", pickle_of(tensor("FloatStorage", 4))},
                  {"byteorder", "little"},
                  {"data/0", std::string(16, '\x3f')}}};
    for (const auto& file : files) {
      whole_.push_back(read_file(file));
      if (is_zip(whole_.back())) {
        contents_.push_back(records_of(file));
      }
    }
    for (auto& records : contents_) {
      pickles_.push_back(pickle_in(records));
      whole_.push_back(zip_of(records, /*check_sums=*/false));
    }
  }

  /// Reads one input. Throws another exception than c10::Error if the input is
  /// not read as it was saved.
  void run(size_t number) {
    read_one(static_cast<Kind>(number % kKinds), number);
  }

 private:
  enum class Kind { checked, any_file, splice, pickle_in_file, bare_pickle };
  static constexpr size_t kKinds = 5;

  void read_one(Kind kind, size_t number) {
    std::string bytes;
    switch (kind) {
      case Kind::checked:
        bytes = checked_;
        damage(bytes, random_, texts());
        return read(bytes, &saved_);
      case Kind::any_file:
        bytes = any_of(whole_, random_);
        damage(bytes, random_, texts());
        return read(bytes);
      case Kind::splice:
        return read(any_splice(whole_, random_));
      case Kind::pickle_in_file: {
        // The check sums fit, so the damage reaches the reader of pickles.
        auto records = any_of(contents_, random_);
        if (below(random_, 8) == 0) {
          damage(
              records[below(random_, records.size())].second, random_, texts());
        }
        pickle_in(records) = damaged(pickle_in(records));
        return read(zip_of(records, /*check_sums=*/number % 2 == 0));
      }
      case Kind::bare_pickle:
        return read_pickle(damaged(any_of(pickles_, random_)));
    }
  }

  std::string damaged(std::string pickle) {
    if (below(random_, 4) == 0) {
      pickle = any_splice(pickles_, random_);
    } else {
      damage(pickle, random_, texts());
    }
    return pickle;
  }

  void read(const std::string& bytes, const c10::IValue* saved = nullptr) {
    write_file(path_, bytes);
    const auto value = ddp::detail::read_torch_file(path_).value;
    Walk().read(value);
    if (saved != nullptr && !same_value(value, *saved)) {
      throw std::logic_error("another value was read");
    }
  }

  static void read_pickle(const std::string& pickle) {
    Walk().read(ddp::detail::unpickle(
        pickle, [](const std::string&, int64_t count, int64_t element_size) {
          TORCH_CHECK(count < 100, "too large for a test");
          return at::zeros({count * element_size}, at::kByte);
        }));
  }

  Random random_;
  const TemporaryFolder folder_;
  std::string path_;
  c10::IValue saved_;
  std::string checked_;             // the file of `saved_`
  std::vector<std::string> whole_;  // files
  std::vector<Records> contents_;   // of zip files
  std::vector<std::string> pickles_ = pickles();
};

}  // namespace

int main(int argc, char** argv) {
  Fuzzer fuzzer(argc, argv, 4000);
  Fuzz fuzz(fuzzer.seed(), fuzzer.files());
  const int status = fuzzer.run([&](size_t number) { fuzz.run(number); });
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  std::printf("at most %ld MB\n", usage.ru_maxrss / 1024);
  // LibTorch alone uses up to 350 MB. Sanitizers keep freed memory.
  return usage.ru_maxrss / 1024 < 2000 ? status : 1;
}
