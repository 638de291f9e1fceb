#include "ddp/checkpoint/pickle/torch_file.h"

#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include <ATen/Functions.h>

#include "ddp/checkpoint/pickle/deferred_tensor.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "test/support/catch.h"
#include "test/support/pickles.h"
#include "test/support/temporary_folder.h"

using namespace std::string_literals;

namespace torch_file_test {

using Catch::Contains;
using ddp::detail::read_torch_file;
using ddp::test::legacy_start;
using ddp::test::pickle_of;
using ddp::test::raw;
using ddp::test::read_file;
using ddp::test::Records;
using ddp::test::TemporaryFolder;
using ddp::test::tensor;
using ddp::test::write_file;
using ddp::test::zip_of;

std::string load_error(const std::string& path) {
  try {
    read_torch_file(path);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// Returns the records of a file with one tensor, [0, 1, 2, 3].
Records four_floats() {
  const auto data = raw(0.0F) + raw(1.0F) + raw(2.0F) + raw(3.0F);
  return {{"data.pkl", pickle_of(tensor("FloatStorage", 4))},
          {"byteorder", "little"},
          {"data/0", data}};
}

constexpr int64_t kLarge = 1'000'000;  // elements of a storage

/// Writes a file with a large tensor and returns the tensor.
at::Tensor write_large(const std::string& path) {
  const auto value = at::arange(kLarge, at::kFloat);
  ddp::detail::write_torch_file(path, value);
  return value;
}

/// Returns true if the tensor's memory is a mapping of the file.
bool is_mapped(const at::Tensor& tensor, const std::string& path) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end;
    if (begin <= address && address < end) {
      return line.find(path) != std::string::npos;
    }
  }
  return false;
}

/// Returns the position of a record in the zip's central directory.
size_t central_header(const std::string& zip, const std::string& name) {
  const auto at = zip.rfind("archive/" + name);
  REQUIRE(at != std::string::npos);
  REQUIRE(zip.substr(at - 46, 4) == "PK\x01\x02");
  return at - 46;
}

TEST_CASE("A file without check sums is read", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  auto bytes = zip_of(four_floats(), /*check_sums=*/false);
  write_file(path, bytes);
  CHECK(at::equal(read_torch_file(path).value.toTensor(), at::arange(4.0F)));
  // If some records have check sums, all records need one.
  bytes = zip_of(four_floats());
  bytes.replace(central_header(bytes, "data/0") + 16, 4, raw(uint32_t{0}));
  write_file(path, bytes);
  CHECK_THAT(load_error(path), Contains("check sum of its record \"data/0\""));
}

TEST_CASE("Files without check sums are told apart", "[torch_file]") {
  const TemporaryFolder folder;
  auto records = four_floats();
  write_file(folder / "a.pt", zip_of(records, false));
  write_file(folder / "b.pt", zip_of(records, false));
  records.back().second[3] ^= 1;
  write_file(folder / "c.pt", zip_of(records, false));
  const auto id = read_torch_file(folder / "a.pt").content_id;
  CHECK(read_torch_file(folder / "b.pt").content_id == id);
  CHECK(read_torch_file(folder / "c.pt").content_id != id);
}

TEST_CASE("Records that overlap are refused", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  auto records = four_floats();
  records.emplace_back("data/1", records.back().second);
  const auto whole = zip_of(records);
  write_file(path, whole);
  CHECK(load_error(path).empty());
  // Makes "data/1" begin at "data/0", or within it.
  const auto first = central_header(whole, "data/0");
  const auto second = central_header(whole, "data/1");
  for (const uint32_t shift : {0U, 32U}) {
    auto bytes = whole;
    uint32_t place = 0;
    std::memcpy(&place, bytes.data() + first + 42, sizeof(place));
    bytes.replace(second + 42, 4, raw(place + shift));
    write_file(path, bytes);
    CHECK_THAT(load_error(path), Contains("its records overlap"));
  }
}

TEST_CASE("A record of another name is not taken for the right one",
          "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  auto bytes = zip_of(four_floats(), /*check_sums=*/false);
  bytes[bytes.find("archive/data/0") + 13] = '1';
  write_file(path, bytes);
  CHECK_THAT(load_error(path), Contains("it is cut off, damaged"));
}

TEST_CASE("A FIFO is no checkpoint", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(load_error(path) ==
        "Cannot load " + path + ": it is not a regular file");
}

TEST_CASE("The error of a file before PyTorch 1.6 tells how to convert it",
          "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  for (const int protocol : {2, 4}) {
    write_file(path, legacy_start(protocol) + pickle_of("N"));
    CHECK(load_error(path) ==
          "Cannot load " + path +
              ": it has torch.save's format before PyTorch 1.6; load it in "
              "Python and save it again: torch.save(torch.load(path), path)");
  }
  // Any other pickle.
  write_file(path, pickle_of("N"));
  CHECK_THAT(load_error(path), Contains("not a file of torch.save"));
}

TEST_CASE("A compressed record is refused", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  auto bytes = zip_of(four_floats());
  bytes[central_header(bytes, "data/0") + 10] = 8;
  write_file(path, bytes);
  CHECK_THAT(load_error(path), Contains("its record \"data/0\" is compressed"));
}

TEST_CASE("A storage has the size that the pickle says", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  auto records = four_floats();
  for (const size_t size : {0U, 12U, 20U}) {
    records.back().second.resize(size);
    write_file(path, zip_of(records));
    CHECK_THAT(load_error(path),
               Contains("its record \"data/0\" has another size"));
  }
  records.pop_back();
  write_file(path, zip_of(records));
  CHECK_THAT(load_error(path), Contains("it has no record \"data/0\""));
}

TEST_CASE("A file of a big-endian machine is refused", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  auto records = four_floats();
  records[1].second = "big";
  write_file(path, zip_of(records));
  CHECK_THAT(load_error(path), Contains("big-endian"));
}

TEST_CASE("Large storages are mapped", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  const auto value = write_large(path);
  const auto bytes = read_file(path);
  const auto file = read_torch_file(path);
  auto tensor = file.value.toTensor();
  CHECK(is_mapped(tensor, path));
  CHECK(at::equal(tensor, value));
  tensor.zero_();
  CHECK(read_file(path) == bytes);
}

TEST_CASE("Tensors outlive the file that they were read from", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  const auto value = write_large(path);
  const auto tensor = read_torch_file(path).value.toTensor();
  const auto half = read_torch_file(path).value.toTensor().narrow(0, 5, 10);
  REQUIRE_FALSE(is_mapped(tensor, path));
  REQUIRE_FALSE(is_mapped(half, path));
  std::filesystem::resize_file(path, 0);
  CHECK(at::equal(tensor, value));
  CHECK(at::equal(half, value.narrow(0, 5, 10)));
  tensor.resize_({2 * kLarge});
  CHECK(at::equal(tensor.narrow(0, 0, kLarge), value));
}

TEST_CASE("Damage in a large storage is found", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  write_large(path);
  auto bytes = read_file(path);
  for (const size_t place : {100'000U, 3'999'999U}) {
    bytes[place] ^= 1;
    write_file(path, bytes);
    CHECK_THAT(load_error(path),
               Contains("check sum of its record \"data/0\" is wrong"));
    bytes[place] ^= 1;
  }
  write_file(path, bytes);
  CHECK(load_error(path).empty());
}

TEST_CASE("A large storage at an odd place is read", "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  const auto value = at::arange(kLarge, at::kFloat);
  Records records = {
      {"data.pkl", pickle_of(tensor("FloatStorage", kLarge))},
      {"data/0",
       {static_cast<const char*>(value.const_data_ptr()), value.nbytes()}}};
  for (const char* odd : {"", "1", "12", "123"}) {
    auto changed = records;
    changed.insert(changed.begin(), {"odd", odd});
    write_file(path, zip_of(changed, /*check_sums=*/true, /*alignment=*/1));
    const auto file = read_torch_file(path);
    const auto read = file.value.toTensor();
    CHECK(reinterpret_cast<uintptr_t>(read.const_data_ptr()) % 64 == 0);
    CHECK(at::equal(read, value));
  }
}

/// Returns a value with a tensor and its transpose, deferred if `read` is
/// given. Calls `read` with the elements in the order of memory.
c10::IValue dict_of_two(
    const std::function<at::Tensor(const at::Tensor& elements)>& read = {}) {
  auto dict = ddp::detail::new_dict();
  const auto tensor = at::arange(6, at::kDouble).view({2, 3});
  for (const auto& item : {tensor, at::add(tensor, 6).t()}) {
    const auto number = static_cast<int64_t>(dict.toGenericDict().size());
    const auto elements = item.as_strided({6}, {1});
    dict.toGenericDict().insert(
        number,
        read ? c10::IValue::make_capsule(
                   c10::make_intrusive<ddp::detail::DeferredTensor>(
                       at::empty_strided(item.sizes(),
                                         item.strides(),
                                         item.options().device(at::kMeta)),
                       [=] { return read(elements); }))
             : c10::IValue(item));
  }
  return dict;
}

TEST_CASE("Deferred tensors are written like others, one at a time",
          "[torch_file]") {
  const TemporaryFolder folder;
  ddp::detail::write_torch_file(folder / "x.pt", dict_of_two());
  c10::weak_intrusive_ptr<c10::StorageImpl> last(
      (c10::intrusive_ptr<c10::StorageImpl>()));
  std::vector<double> first;
  const auto value = dict_of_two([&](const at::Tensor& elements) {
    CHECK(last.expired());
    auto copy = elements.clone();
    last = copy.storage().getWeakStorageImpl();
    first.push_back(copy[0].item<double>());
    return copy;
  });
  ddp::detail::write_torch_file(folder / "deferred.pt", value);
  CHECK(first == std::vector<double>{0, 6});
  CHECK(read_file(folder / "x.pt") == read_file(folder / "deferred.pt"));
  ddp::detail::read_rest(value);
  CHECK(first.size() == 2);
}

TEST_CASE("A deferred tensor that cannot be read leaves the previous file",
          "[torch_file]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  write_file(path, "before");
  int reads = 0;
  const auto value = dict_of_two([&](const at::Tensor& elements) {
    TORCH_CHECK(++reads > 1, "no memory");
    return elements;
  });
  CHECK_THROWS_WITH(ddp::detail::write_torch_file(path, value),
                    Contains("Cannot save " + path + ": no memory"));
  CHECK(read_file(path) == "before");
  CHECK(reads == 1);
  ddp::detail::read_rest(value);
  CHECK(reads == 2);
}

TEST_CASE("Copied storages do not change with the value", "[torch_file]") {
  const TemporaryFolder folder;
  int reads = 0;
  const auto value = dict_of_two([&](const at::Tensor& elements) {
    ++reads;
    return elements;
  });
  const auto tensor = at::ones({3});
  value.toGenericDict().insert("ones", tensor);
  auto pickled = ddp::detail::pickle(value);
  CHECK(reads == 0);
  ddp::detail::copy_storages(pickled);
  CHECK(reads == 2);
  tensor.zero_();
  ddp::detail::write_torch_file(folder / "x.pt", pickled);
  const auto file = read_torch_file(folder / "x.pt").value.toGenericDict();
  CHECK(at::equal(file.at("ones").toTensor(), at::ones({3})));
}

}  // namespace torch_file_test
