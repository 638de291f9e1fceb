// Damages files and pickles of torch.save at random and reads them:
//   checkpoint_fuzz [COUNT [SEED]]
// Also loads checkpoints with values that are replaced at random into a
// training. Each input is refused with a one-line error, or yields the saved
// value if check sums protect it. Fails on any other exception and on any other
// value; sanitizers find the rest.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include "ddp/checkpoint.h"
#include "ddp/checkpoint/pickle/pickler.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/checkpoint/pickle/unpickler.h"
#include "test/support/damage.h"
#include "test/support/pickles.h"
#include "test/support/same_value.h"
#include "test/support/temporary_folder.h"

namespace {

using namespace ddp::test;
/// Returns replacements for lengths and numbers in a file.
const std::vector<std::string>& numbers() {
  static const std::vector<std::string> all{raw(UINT32_MAX),
                                            raw(INT32_MAX),
                                            raw(UINT64_MAX),
                                            raw(INT64_MAX),
                                            raw(uint64_t{1} << 40),
                                            raw(uint16_t{0xFFFF}),
                                            raw(uint32_t{0})};
  return all;
}

/// Reads all memory of a value, so that sanitizers find invalid memory.
size_t walk(const c10::IValue& value) {
  size_t sum = 1;
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    const auto* bytes = static_cast<const uint8_t*>(tensor.storage().data());
    for (size_t i = 0; i < tensor.storage().nbytes(); ++i) {
      sum += bytes[i];
    }
    // A tensor with strides of 0 may have any number of elements.
    if (tensor.numel() < 1000) {
      sum += tensor.clone().nbytes();
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      sum += walk(item);
    }
  } else if (value.isTuple()) {
    for (const auto& item : value.toTupleRef().elements()) {
      sum += walk(item);
    }
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) {
      sum += walk(item.value());
    }
  } else if (value.isString()) {
    sum += value.toStringRef().size();
  }
  return sum;
}

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
  const auto ordered = global("collections", "OrderedDict");
  const auto dtype = call(global("numpy", "dtype"), {pickled("i8")}) +
                     tuple({pickled(3), pickled("<"), "N"}) + "b";
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
          pickle_of(call(global("numpy._core.multiarray", "scalar"),
                         {dtype,
                          call(global("_codecs", "encode"),
                               {pickled("\xc3\xbf" + std::string(7, 'x')),
                                pickled("latin1")})})),
          pickle_of(call(ordered,
                         {"](](U\x01"s
                          "aK\x03"s
                          "ee"}) +
                    "(" + pickled("b") + "}q\x01ub"),
          pickle_of(repeat("]q\x01", 20) + repeat("\x85"s
                                                  "a",
                                                  19)),
          pickle_of("\x95"s + raw(uint64_t{9}) +
                        "\x8c\x0b"s
                        "collections\x8c\x0bOrderedDict\x93\x94)R(\x8c\x01"s
                        "aK\x05\x8e" +
                        raw(uint64_t{2}) + "hi\x8f(K\x01\x90u",
                    4)};
}

struct Outcome {
  size_t read = 0;
  size_t refused = 0;
};

/// Runs `work` and counts its outcome. Returns false if an error is not one
/// clear line.
bool expect_one_line(const std::function<void()>& work, Outcome& outcome) {
  try {
    work();
    ++outcome.read;
  } catch (const c10::Error& error) {
    ++outcome.refused;
    const std::string text = error.what_without_backtrace();
    return !text.empty() && text.size() < 1000;
  }
  return true;
}

/// @throws std::logic_error if the value differs from the saved one.
void read_file_of(const std::string& path, const c10::IValue* saved) {
  const auto value = ddp::detail::read_torch_file(path).value;
  walk(value);
  if (saved != nullptr && !same_value(value, *saved)) {
    throw std::logic_error("another value was read");
  }
}

void read_pickle(const std::string& pickle) {
  ddp::detail::ByteReader bytes(pickle);
  walk(ddp::detail::unpickle(
      bytes, [](const std::string&, int64_t count, int64_t element_size) {
        TORCH_CHECK(count < 100, "too large for a test");
        return at::zeros({count * element_size}, at::kByte);
      }));
}

/// Returns a value that a checkpoint does not have in its place.
c10::IValue other_value(Random& random) {
  const std::vector<c10::IValue> all{c10::IValue(),
                                     int64_t{-1},
                                     int64_t{0},
                                     std::numeric_limits<int64_t>::max(),
                                     std::numeric_limits<double>::quiet_NaN(),
                                     1e30,
                                     true,
                                     "strong_wolfe",
                                     ddp::detail::new_dict(),
                                     ddp::detail::new_list(),
                                     at::ones({}),
                                     at::ones({3, 4}),
                                     at::ones({12}, at::kComplexFloat),
                                     at::ones({15}).expand({2, 15})};
  return any_of(all, random);
}

/// Replaces or removes one value somewhere in a dict or list.
void replace_one(const c10::IValue& value, Random& random) {
  const auto down = [&](const c10::IValue& child) {
    const bool is_container = child.isGenericDict() || child.isList();
    if (is_container && random() % 8 != 0) {
      replace_one(child, random);
      return true;
    }
    return false;
  };
  if (value.isGenericDict() && !value.toGenericDict().empty()) {
    auto dict = value.toGenericDict();
    std::vector<c10::IValue> keys;
    for (const auto& item : dict) {
      keys.push_back(item.key());
    }
    const auto key = any_of(keys, random);
    if (!down(dict.at(key))) {
      if (random() % 4 == 0) {
        static_cast<void>(dict.erase(key));
      } else {
        dict.insert_or_assign(key, other_value(random));
      }
    }
  } else if (value.isList() && !value.toListRef().empty()) {
    auto list = value.toList();
    const auto at = random() % list.size();
    if (!down(list.get(at))) {
      list.set(at, other_value(random));
    }
  }
}

/// A training with the objects that a checkpoint can hold, after two steps.
struct Training {
  Training() {
    checkpoint.add("rmsprop", rmsprop)
        .add("adam", adam)
        .add("sampler", sampler);
    step();
    step();
  }

  void step() {
    rmsprop.zero_grad();
    net->forward(at::ones({2, 4})).pow(2).mean().backward();
    rmsprop.step();
    adam.step();
    sampler.reset();
    sampler.next(1);
  }

  torch::nn::Linear net{4, 3};
  torch::optim::RMSprop rmsprop{
      net->parameters(),
      torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true)};
  torch::optim::Adam adam{net->parameters()};
  ddp::DistributedSampler sampler{
      20, ddp::DistributedSamplerOptions().num_replicas(2).rank(1)};
  ddp::Checkpoint checkpoint{net};
};

/// Loads a checkpoint with other values. The training has to work with all
/// values that it accepts.
void load_other_values(const std::string& path, Random& random) {
  Training training;
  training.checkpoint.save(path);
  const auto value = ddp::detail::read_torch_file(path).value;
  for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
    replace_one(value, random);
  }
  ddp::detail::write_torch_file(path, value);
  training.checkpoint.load(path);
  training.step();
}

/// Returns false if a loaded value breaks the training, or an error is unclear.
bool load_other_values(const std::string& path, size_t count, size_t seed) {
  Random random(seed);
  Outcome outcome;
  for (size_t i = 0; i < count; ++i) {
    std::string problem = "no clear error";
    try {
      if (expect_one_line([&] { load_other_values(path, random); }, outcome)) {
        continue;
      }
    } catch (const std::exception& error) {
      problem = error.what();
    }
    std::printf("values %zu of seed %zu: %s\n", i, seed, problem.c_str());
    return false;
  }
  std::printf(
      "%zu checkpoints with other values: %zu refused, %zu trained on\n",
      count,
      outcome.refused,
      outcome.read);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4000;
  const size_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  Random random(seed);
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  const auto saved = checkpoint();
  ddp::detail::write_torch_file(path, saved);
  const auto checked = read_file(path);
  const std::string four(16, '\x3f');
  const Records records{{"data.pkl", pickle_of(tensor("FloatStorage", 4))},
                        {"byteorder", "little"},
                        {"data/0", four}};
  const std::vector<std::string> unchecked{
      zip_of(records, /*check_sums=*/false),
      legacy_file(tensor("FloatStorage", 4), "0", 4, four)};
  const auto bare = pickles();

  Outcome outcome;
  double longest = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t kind = i % 4;
    auto bytes = kind == 0   ? checked
                 : kind == 1 ? any_of(unchecked, random)
                             : any_of(bare, random);
    damage(bytes, random, numbers());
    const auto start = std::chrono::steady_clock::now();
    bool is_clear = true;
    try {
      is_clear = expect_one_line(
          [&] {
            if (kind > 1) {
              read_pickle(bytes);
            } else {
              write_file(path, bytes);
              read_file_of(path, kind == 0 ? &saved : nullptr);
            }
          },
          outcome);
    } catch (const std::exception& error) {
      std::printf("input %zu of seed %zu: %s\n", i, seed, error.what());
      return 1;
    }
    if (!is_clear) {
      std::printf("input %zu of seed %zu: no clear error\n", i, seed);
      return 1;
    }
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    longest = std::max(longest, took.count());
  }
  if (!load_other_values(path, count / 10, seed)) {
    return 1;
  }
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "seed %zu, %zu inputs: %zu refused, %zu read; the longest took %.1f ms; "
      "at most %ld MB\n",
      seed,
      count,
      outcome.refused,
      outcome.read,
      longest * 1e3,
      usage.ru_maxrss / 1024);
  // LibTorch alone uses up to 350 MB. Sanitizers keep freed memory.
  return usage.ru_maxrss / 1024 < 2000 ? 0 : 1;
}
