#include "ddp/state_dict.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <torch/nn.h>
#include <torch/serialize.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/checkpoint/pickle/zip_reader.h"
#include "test/support/catch.h"
#include "test/support/same_value.h"
#include "test/support/temporary_folder.h"

namespace state_dict_test {

using Catch::Contains;
using ddp::test::read_file;
using ddp::test::same_bits;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("bn", bn);
    register_module("fc", fc);
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 2, 3).bias(false)};
  torch::nn::BatchNorm2d bn{2};
  torch::nn::Linear fc{2, 3};
};
TORCH_MODULE(Net);

/// Registers a module as DistributedDataParallel does.
struct Wrapper : torch::nn::Module {
  explicit Wrapper(const Net& net) { register_module("module", net.ptr()); }
};

std::vector<std::string> keys(const ddp::StateDict& tensors) {
  return tensors.keys();
}

void fill(torch::nn::Module& module, double value) {
  torch::NoGradGuard no_grad;
  for (const auto& item : ddp::state_dict(module)) {
    item.value().fill_(value);
  }
}

bool all_are(const torch::nn::Module& module, double value) {
  for (const auto& item : ddp::state_dict(module)) {
    if (!item.value().eq(value).all().item<bool>()) {
      return false;
    }
  }
  return true;
}

c10::IValue dict_of(
    const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
  auto dict = ddp::detail::new_dict();
  for (const auto& [name, tensor] : tensors) {
    dict.toGenericDict().insert(name, tensor);
  }
  return dict;
}

/// A disk that kills the process at one of its writes.
class DeadlyDisk : public ddp::detail::Disk {
 public:
  explicit DeadlyDisk(int writes) : left_(writes) {}
  int write(int fd, const void* data, size_t size) override {
    if (left_-- == 0) {
      Disk::write(fd, data, size / 2);
      ::raise(SIGKILL);
    }
    return Disk::write(fd, data, size);
  }

 private:
  int left_;
};

/// Writes `value` in a child process that is killed after `writes` writes.
/// Returns whether the child completed the file.
bool survives(const std::string& path, const c10::IValue& value, int writes) {
  const pid_t child = ::fork();
  if (child == 0) {
    DeadlyDisk disk(writes);
    ddp::detail::write_torch_file(path, value, disk);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status);
}

std::string load_error(torch::nn::Module& module, const std::string& path) {
  try {
    ddp::load_state_dict(module, path);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_CASE("The check sum is zip's", "[state_dict]") {
  CHECK(ddp::detail::crc32("123456789", 9) == 0xCBF43926U);
  CHECK(ddp::detail::crc32("", 0) == 0U);
  const std::string text(37, 'a');
  uint32_t slow = 0xFFFFFFFFU;
  for (const char c : text) {
    slow ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) {
      slow = (slow >> 1) ^ ((slow & 1U) != 0 ? 0xEDB88320U : 0U);
    }
  }
  CHECK(ddp::detail::crc32(text.data(), text.size()) == ~slow);
}

TEST_CASE("Keys are PyTorch's, in its order", "[state_dict]") {
  const std::vector<std::string> expected{"conv.weight",
                                          "bn.weight",
                                          "bn.bias",
                                          "bn.running_mean",
                                          "bn.running_var",
                                          "bn.num_batches_tracked",
                                          "fc.weight",
                                          "fc.bias"};
  Net net;
  CHECK(keys(ddp::state_dict(*net)) == expected);
  CHECK(keys(ddp::state_dict(Wrapper(net))) == expected);
  CHECK_FALSE(ddp::state_dict(*net)["fc.weight"].requires_grad());
}

TEST_CASE("A module comes back from a file", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.pt";
  Net saved;
  ddp::save_state_dict(*saved, path);
  Net loaded;
  fill(*loaded, 7);
  const auto storage = loaded->fc->weight.data_ptr();
  ddp::load_state_dict(*loaded, path);
  CHECK(loaded->fc->weight.data_ptr() == storage);
  CHECK(loaded->fc->weight.requires_grad());
  for (const auto& item : ddp::state_dict(*saved)) {
    CHECK(same_bits(ddp::state_dict(*loaded)[item.key()], item.value()));
  }
}

TEST_CASE("A wrapper's file and the plain module's are the same",
          "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.pt";
  Net net;
  fill(*net, 3);
  ddp::save_state_dict(Wrapper(net), path);
  Net plain;
  ddp::load_state_dict(*plain, path);
  CHECK(all_are(*plain, 3));

  // PyTorch's DDP writes this prefix.
  auto prefixed = ddp::StateDict();
  for (const auto& item : ddp::state_dict(*net)) {
    prefixed.insert("module." + item.key(), item.value());
  }
  Net other;
  ddp::load_state_dict(*other, prefixed);
  CHECK(all_are(*other, 3));
}

TEST_CASE("Wrappers around the saved and the loaded module need not agree",
          "[state_dict]") {
  struct Twice : torch::nn::Module {
    explicit Twice(const Net& net) {
      register_module("module", std::make_shared<Wrapper>(net));
    }
  };
  struct WithoutParameters : torch::nn::Module {
    explicit WithoutParameters(const Net& net) {
      register_module("module", net.ptr());
      register_module("relu", torch::nn::ReLU());
    }
  };
  // PyTorch's names: each wrapper adds "module.".
  const auto saved_within = [](const std::string& wrappers) {
    Net net;
    fill(*net, 3);
    ddp::StateDict tensors;
    for (const auto& item : ddp::state_dict(*net)) {
      tensors.insert(wrappers + item.key(), item.value());
    }
    return tensors;
  };
  for (const char* wrappers : {"", "module.", "module.module."}) {
    CAPTURE(wrappers);
    Net plain;
    ddp::load_state_dict(*plain, saved_within(wrappers));
    CHECK(all_are(*plain, 3));
    Twice twice{Net()};
    ddp::load_state_dict(twice, saved_within(wrappers));
    CHECK(all_are(twice, 3));
  }
  // Not a wrapper: the child has another name.
  WithoutParameters other{Net()};
  ddp::load_state_dict(other, saved_within("module."));
  ddp::load_state_dict(other, saved_within("module.module."));
  CHECK(all_are(other, 3));
}

TEST_CASE("Tensors of every kind come back", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "tensors.pt";
  const auto base = torch::arange(24, torch::kFloat).reshape({2, 3, 4});
  const std::vector<std::pair<std::string, torch::Tensor>> tensors{
      {"float", base},
      {"double", base.to(torch::kDouble)},
      {"half", base.to(torch::kHalf)},
      {"bfloat16", base.to(torch::kBFloat16)},
      {"long", base.to(torch::kLong)},
      {"int", base.to(torch::kInt)},
      {"short", base.to(torch::kShort)},
      {"char", base.to(torch::kChar)},
      {"byte", base.to(torch::kByte)},
      {"bool", base.to(torch::kBool)},
      {"complex", base.to(torch::kComplexFloat)},
      {"channels_last",
       torch::randn({2, 3, 4, 5})
           .contiguous(torch::MemoryFormat::ChannelsLast)},
      {"transposed", base.transpose(0, 2)},
      {"expanded", torch::ones({1, 3}).expand({4, 3})},
      {"narrow", base.narrow(1, 1, 2)},
      {"scalar", torch::tensor(3.5)},
      {"empty", torch::empty({0})},
      {"empty matrix", torch::empty({0, 3})},
      {"conjugate", base.to(torch::kComplexFloat).conj()},
      {"negative", at::imag(base.to(torch::kComplexFloat).conj())},
      {"complex half", base.to(torch::kComplexHalf)},
      {"float8", base.to(torch::kFloat8_e4m3fn)},
      {"uint16", base.to(torch::kUInt16)},
      {"uint64", base.to(torch::kLong).neg().view(torch::kUInt64)},
      {"with history", torch::ones({2}, torch::requires_grad()) * 2},
      {"nan", torch::full({2}, std::nan(""))}};
  ddp::detail::write_torch_file(path, dict_of(tensors));
  const auto read = ddp::detail::read_torch_file(path).value.toGenericDict();
  REQUIRE(read.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    const auto loaded = read.at(name).toTensor();
    CHECK(same_bits(loaded, tensor));
    CHECK_FALSE(loaded.requires_grad());
  }
  // "float" and "narrow" share their memory; "double" has its own.
  read.at("float").toTensor()[0][1][0] = 100;
  CHECK(read.at("narrow").toTensor()[0][0][0].item<float>() == 100);
  CHECK(read.at("double").toTensor()[0][1][0].item<double>() == 4);
}

TEST_CASE("What is no dense tensor is refused and named", "[state_dict]") {
  const TemporaryFolder folder;
  const auto write = [&](const torch::Tensor& tensor) {
    ddp::detail::write_torch_file(folder / "x.pt", dict_of({{"x", tensor}}));
  };
  CHECK_THROWS_WITH(write(torch::eye(2).to_sparse()),
                    Contains("Cannot save") && Contains("dense tensors") &&
                        Contains("under [\"x\"]"));
  CHECK_THROWS_WITH(write(torch::Tensor()), Contains("dense tensors"));
  CHECK_THROWS_WITH(write(torch::empty({2}, torch::kMeta)),
                    Contains("dense tensors"));
  CHECK(folder.size() == 0);
}

TEST_CASE("A file that does not fit changes nothing", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.pt";
  Net net;
  fill(*net, 5);
  auto tensors = std::vector<std::pair<std::string, torch::Tensor>>();
  for (const auto& item : ddp::state_dict(*Net())) {
    tensors.emplace_back(item.key(), item.value());
  }
  const auto error_with = [&](auto change) {
    auto changed = tensors;
    change(changed);
    ddp::detail::write_torch_file(path, dict_of(changed));
    return load_error(*net, path);
  };
  const std::string start = "Cannot load " + path + ": ";
  CHECK(error_with([](auto& t) { t.erase(t.begin() + 6); }) ==
        start + "it does not fit the module: \"fc.weight\" is missing");
  CHECK(
      error_with([](auto& t) { t.emplace_back("extra", torch::ones({1})); }) ==
      start + "it does not fit the module: the module has no \"extra\"");
  CHECK(error_with([](auto& t) {
          t[6].second = torch::ones({3, 4});
        }) == start +
                  "it does not fit the module: \"fc.weight\": expected shape "
                  "[3, 2], but got [3, 4]");
  CHECK(error_with([](auto& t) {
          t[7].second = t[7].second.to(torch::kLong);
        }) == start +
                  "it does not fit the module: \"fc.bias\": expected "
                  "dtype Float, but got Long");
  const auto all = error_with([](auto& t) {
    t[0].first = "cnov.weight";
    t[7].second = torch::ones({9});
  });
  CHECK_THAT(all, Contains("\"conv.weight\" is missing"));
  CHECK_THAT(all, Contains("\"fc.bias\": expected shape"));
  CHECK_THAT(all, Contains("no \"cnov.weight\""));
  CHECK(all_are(*net, 5));
}

TEST_CASE("Names of one side alone are left where that is asked for",
          "[state_dict]") {
  Net net;
  fill(*net, 5);
  ddp::StateDict tensors;
  for (const auto& item : ddp::state_dict(*net)) {
    if (item.key().rfind("fc.", 0) != 0) {
      tensors.insert(item.key(), torch::full_like(item.value(), 2));
    }
  }
  tensors.insert("head.weight", torch::ones({3}));
  CHECK_THROWS_WITH(ddp::load_state_dict(*net, tensors),
                    Contains("\"fc.weight\" is missing"));
  const auto lenient = ddp::LoadStateDictOptions().strict(false);
  const auto keys = ddp::load_state_dict(*net, tensors, lenient);
  CHECK(keys.missing == std::vector<std::string>{"fc.weight", "fc.bias"});
  CHECK(keys.unexpected == std::vector<std::string>{"head.weight"});
  CHECK(net->fc->weight.eq(5).all().item<bool>());
  CHECK(ddp::state_dict(*net).front().value().eq(2).all().item<bool>());
  // A shape that differs is an error even then.
  tensors.front().value() = torch::ones({1, 1, 1});
  CHECK_THROWS_WITH(ddp::load_state_dict(*net, tensors, lenient),
                    Contains("expected shape"));
  const auto bias = net->fc->bias.detach();
  for (const auto& unfit : {bias.to_sparse(), bias.to(torch::kMeta)}) {
    tensors.front().value() = torch::full_like(net->parameters()[0], 7);
    tensors.insert("fc.bias", unfit);
    CHECK_THROWS_WITH(ddp::load_state_dict(*net, tensors, lenient),
                      Contains("\"fc.bias\": expected a dense tensor"));
    tensors.erase("fc.bias");
  }
  CHECK(ddp::state_dict(*net).front().value().eq(2).all().item<bool>());
}

TEST_CASE("Floating-point tensors become the module's dtype", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.pt";
  torch::nn::Linear saved(3, 2);
  ddp::save_state_dict(*saved, path);
  torch::nn::Linear narrow(3, 2);
  narrow->to(torch::kBFloat16);
  const auto keys = ddp::load_state_dict(*narrow, path);
  CHECK(keys.missing.empty());
  CHECK(keys.unexpected.empty());
  CHECK(narrow->weight.scalar_type() == torch::kBFloat16);
  CHECK(narrow->weight.equal(saved->weight.to(torch::kBFloat16)));
  ddp::save_state_dict(*narrow, path);
  ddp::load_state_dict(*saved, path);
  CHECK(saved->weight.equal(narrow->weight.to(torch::kFloat)));
}

TEST_CASE("What is no state dict is refused", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  Net net;
  fill(*net, 5);
  CHECK_THAT(load_error(*net, folder / "none"),
             Contains("none: No such file or directory"));
  CHECK_THAT(load_error(*net, folder / "."), Contains("not a regular file"));
  write_file(path, "");
  CHECK_THAT(load_error(*net, path), Contains("not a file of torch.save"));
  write_file(path, std::string(100'000, 'x'));
  CHECK_THAT(load_error(*net, path), Contains("not a file of torch.save"));
  torch::save(Net(), path);
  CHECK_THAT(load_error(*net, path),
             Contains("expected a state dict, but got a Python object of") &&
                 Contains("save model.state_dict()"));
  ddp::detail::write_torch_file(path, c10::IValue(3));
  CHECK_THAT(load_error(*net, path),
             Contains("expected a state dict, but got a int"));
  auto dict = ddp::detail::new_dict();
  dict.toGenericDict().insert("fc.weight", "text");
  ddp::detail::write_torch_file(path, dict);
  CHECK_THAT(load_error(*net, path), Contains("but got a str under"));
  CHECK(all_are(*net, 5));
}

TEST_CASE("A file cut off anywhere is refused", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.pt";
  torch::nn::Linear net(2, 3);
  ddp::save_state_dict(*net, path);
  const auto whole = read_file(path);
  fill(*net, 5);
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(path, whole.substr(0, size));
    const auto error = load_error(*net, path);
    if (error.find("Cannot load " + path + ": it is cut off") != 0) {
      FAIL("cut off at " << size << ": " << error);
    }
  }
  CHECK(all_are(*net, 5));
}

TEST_CASE("No altered byte goes unnoticed", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.pt";
  torch::nn::Linear net(2, 3);
  fill(*net, 4);
  ddp::save_state_dict(*net, path);
  const auto whole = read_file(path);
  const std::vector<float> weight(net->weight.numel(), 4.0F);
  const size_t size = weight.size() * sizeof(float);
  const size_t data = whole.find(
      std::string(reinterpret_cast<const char*>(weight.data()), size));
  REQUIRE(data != std::string::npos);
  int missed = 0;  // undetected damage to the weight
  int altered = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {1 << i % 8, 0xFF}) {
      auto damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      write_file(path, damaged);
      fill(*net, 5);
      const bool failed = !load_error(*net, path).empty();
      missed += data <= i && i < data + size && !failed ? 1 : 0;
      altered += all_are(*net, failed ? 5 : 4) ? 0 : 1;
    }
  }
  CHECK(altered == 0);
  CHECK(missed == 0);
}

TEST_CASE("Killed at any write, the previous file stays", "[state_dict]") {
  const TemporaryFolder folder;
  const auto path = folder / "net.pt";
  torch::nn::Linear net(2, 3);
  fill(*net, 4);
  ddp::save_state_dict(*net, path);
  const auto update = dict_of({{"weight", torch::full({3, 2}, 5.0F)},
                               {"bias", torch::full({3}, 5.0F)}});
  int writes = 0;
  while (!survives(path, update, writes)) {
    fill(*net, 0);
    ddp::load_state_dict(*net, path);
    REQUIRE(all_are(*net, 4));
    ++writes;
  }
  CHECK(writes > 10);
  ddp::load_state_dict(*net, path);
  CHECK(all_are(*net, 5));
}

}  // namespace state_dict_test
