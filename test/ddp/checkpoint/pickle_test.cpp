#include <cmath>
#include <cstdint>

#include <ATen/Functions.h>

#include "ddp/checkpoint/pickle/pickler.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/unpickler.h"
#include "test/support/catch.h"
#include "test/support/pickles.h"
#include "test/support/same_value.h"

using namespace std::string_literals;

namespace pickle_test {

using Catch::Contains;
using ddp::detail::describe;
using ddp::detail::DictReader;
using ddp::detail::new_dict;
using ddp::detail::new_list;
using ddp::test::call;
using ddp::test::dict;
using ddp::test::global;
using ddp::test::pickle_of;
using ddp::test::pickled;
using ddp::test::raw;
using ddp::test::repeat;
using ddp::test::same_value;
using ddp::test::storage;
using ddp::test::tensor;
using ddp::test::tensor_arguments;
using ddp::test::tuple;

constexpr int kDeepest = ddp::detail::kMaxDepth;

/// Reads a pickle. The bytes of each storage count up from 0.
c10::IValue read(const std::string& pickle) {
  return ddp::detail::unpickle(
      pickle, [](const std::string&, int64_t count, int64_t size) {
        return at::arange(count * size, at::kByte);
      });
}

c10::IValue value_of(const std::string& value, int protocol = 2) {
  return read(pickle_of(value, protocol));
}

std::string error_of(const std::string& value) {
  try {
    value_of(value);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::string rebuild(const std::vector<std::string>& arguments) {
  return call(global("torch._utils", "_rebuild_tensor_v2"), arguments);
}

std::string with_metadata(const std::string& type, const std::string& value) {
  auto arguments = tensor_arguments(type, 4);
  arguments.push_back(value);
  return rebuild(arguments);
}

TEST_CASE("Numbers and text of every protocol", "[pickle]") {
  CHECK(value_of("K\xff").toInt() == 255);
  CHECK(value_of("M\xff\xff").toInt() == 65535);
  CHECK(value_of("J\xff\xff\xff\xff").toInt() == -1);
  CHECK(value_of(std::string("\x8a\x00", 2)).toInt() == 0);
  CHECK(value_of("\x8a\x01\x80").toInt() == -128);
  CHECK(value_of("\x8a\x08" + raw(INT64_MIN)).toInt() == INT64_MIN);
  CHECK(value_of("\x8b" + raw(uint32_t{2}) + "\x00\x01"s).toInt() == 256);
  CHECK(describe(value_of("\x8a\x09" + std::string(9, 'x'))) ==
        "a Python object of int");
  CHECK(value_of("G\x40\x09\x21\xfb\x54\x44\x2d\x18").toDouble() == M_PI);
  CHECK(value_of("\x8c\x02hi", 4).toStringRef() == "hi");
  CHECK(value_of("\x8d" + raw(uint64_t{2}) + "hi", 4).toStringRef() == "hi");
  CHECK(describe(value_of("C\x02hi", 3)) == "a Python object of bytes");
  CHECK(describe(value_of("B" + raw(uint32_t{2}) + "hi", 3)) ==
        "a Python object of bytes");
  CHECK(describe(value_of("\x96" + raw(uint64_t{2}) + "hi", 5)) ==
        "a Python object of bytearray");
  CHECK(describe(value_of("\x8f(K\x01\x90", 4)) == "a Python object of set");
  const auto complex =
      call(global("__builtin__", "complex"),
           {"G" + std::string(8, '\0'), "G\x3f\xf0" + std::string(6, '\0')});
  CHECK(value_of(complex).toComplexDouble() == c10::complex<double>(0, 1));
}

TEST_CASE("Protocol 4 frames, memoizes and names by the stack", "[pickle]") {
  const auto value = "\x95" + raw(uint64_t{99}) +
                     "\x8c\x0b"s
                     "collections\x8c\x0bOrderedDict\x93\x94)R\x94"
                     "(\x8c\x01"s
                     "a\x94K\x05\x8c\x01"s
                     "bh\x02u";
  const DictReader result(value_of(value, 4), "result");
  CHECK(result.integer("a") == 5);
  CHECK(result.get("b").toStringRef() == "a");
}

TEST_CASE("What is no pickle of torch.save is refused", "[pickle]") {
  CHECK_THROWS_WITH(read("K\x01."), Contains("it has pickle protocol 0 or 1"));
  CHECK_THROWS_WITH(read("\x80\x06N."), Contains("it has pickle protocol 6"));
  CHECK_THAT(error_of("\x97"), Contains("pickle opcode 151"));
  CHECK_THAT(error_of("X" + raw(UINT32_MAX)), Contains("it is cut off"));
  CHECK_THAT(error_of("\x8d" + raw(UINT64_MAX)), Contains("it is cut off"));
  CHECK_THAT(error_of("cmodule"), Contains("it is cut off"));
  CHECK_THROWS_WITH(read(pickle_of("N") + "N"),
                    Contains("its pickle is damaged"));
  for (const char* damaged :
       {"t", "e", "N}s", "]N]u", "h\x01", "NN)R", "N)\x81", ""}) {
    CAPTURE(damaged);
    CHECK_THAT(error_of(damaged), Contains("its pickle is damaged"));
  }
}

TEST_CASE("Values are nested as deep as Python nests them", "[pickle]") {
  const auto depth = static_cast<size_t>(kDeepest);
  CHECK(value_of(")" + repeat("\x85", depth - 1)).isTuple());
  CHECK_THAT(error_of(")" + repeat("\x85", depth)),
             Contains("deeper than 1000 levels"));
  CHECK_THAT(error_of(")" + repeat("\x85", 1'000'000)),
             Contains("deeper than"));
  CHECK_THAT(error_of(repeat("]", depth + 1) + repeat("a", depth)),
             Contains("deeper than"));
  CHECK_THAT(error_of(repeat("}K\x01", depth) + "}" + repeat("s", depth)),
             Contains("deeper than"));
  // Each list contains only a younger one, which only its memo identifies.
  std::string chain = "](]q\x01";
  for (int i = 0; i < kDeepest; ++i) {
    chain +=
        "]h\x01"s
        "aq\x01";
  }
  CHECK_THAT(error_of(chain + "e"), Contains("deeper than"));
}

TEST_CASE("No value contains itself", "[pickle]") {
  const char* expected = "contains itself";
  CHECK_THAT(error_of("}q\x01" + pickled("model") + "h\x01s"),
             Contains(expected));
  CHECK_THAT(error_of("]q\x01h\x01"s
                      "a"),
             Contains(expected));
  CHECK_THAT(error_of("]q\x01h\x01\x85"s
                      "a"),
             Contains(expected));
  CHECK_THAT(error_of("]q\x01]q\x02h\x01"s
                      "ah\x02"s
                      "a"),
             Contains(expected));
  // The same value twice is no cycle.
  CHECK(value_of("](]q\x01h\x01"s
                 "e")
            .toListRef()
            .size() == 2);
}

TEST_CASE("Kinds of dicts", "[pickle]") {
  const auto items = "(" + pickled("a") + "K\x01u";
  const auto integer_of = [](const std::string& value) {
    return DictReader(value_of(value), "dict").integer("a");
  };
  CHECK(integer_of("}" + items) == 1);
  CHECK(integer_of(call(global("collections", "OrderedDict"), {}) + items) ==
        1);
  CHECK(integer_of(call(global("collections", "defaultdict"),
                        {global("__builtin__", "list")}) +
                   items) == 1);
  CHECK(integer_of(call(global("collections", "Counter"),
                        {dict({pickled("a"), "K\x02"})})) == 2);
  CHECK(describe(value_of(call(global("collections", "Counter"), {"K\x01"}))) ==
        "a Python object of collections.Counter");
  // A dict with attributes.
  CHECK(integer_of("}" + items + "}(" + pickled("_metadata") + "}ub") == 1);
}

TEST_CASE("No item of a dict is lost in silence", "[pickle]") {
  const auto nan = "G\x7f\xf8" + std::string(6, '\0');
  for (const auto& key :
       {std::string("N"), "K\x01\x85"s, nan, tensor("FloatStorage", 4)}) {
    const auto result = value_of("}(" + key + "K\x01" + pickled("a") + "K\x02u")
                            .toGenericDict();
    CHECK(result.size() == 2);
    CHECK(result.at("a").toInt() == 2);
    CHECK(result.at("(a key that is no int, float, bool or str)").isCapsule());
  }
  // c10::Dict would use unlimited memory for these keys.
  const auto many = value_of("}(" + repeat(nan + "N", 1000) + "u");
  CHECK(many.toGenericDict().size() == 1);
}

TEST_CASE("A scalar of numpy is opaque", "[pickle]") {
  const auto dtype =
      call(global("numpy", "dtype"), {pickled("i8"), "\x89", "\x88"}) +
      tuple({pickled(3), pickled("<"), "N", "N"}) + "b";
  const auto scalar = call(global("numpy._core.multiarray", "scalar"),
                           {dtype, "C\x08" + raw(int64_t{-7})});
  const auto values = value_of("}(" + pickled("lr") + scalar + "u", 3);
  CHECK_THROWS_WITH(
      DictReader(values, "group").number("lr"),
      Contains("expected a number as its group[\"lr\"], but got a Python "
               "object of numpy._core.multiarray.scalar"));
}

/// c10::Dict multiplies a key by a constant, and doubles its table for each key
/// that meets too many others.
TEST_CASE("Keys that all meet in a dict's table are refused", "[pickle]") {
  constexpr uint64_t kFactor = 11400714819323198485U;
  uint64_t inverse = kFactor;
  for (int round = 0; round < 5; ++round) {
    inverse *= 2 - kFactor * inverse;
  }
  std::string keys;
  for (uint64_t i = 1; i <= 22; ++i) {
    keys += "\x8a\x08" + raw(i * inverse) + "N";
  }
  CHECK_THAT(error_of("}(" + keys + "u"), Contains("damaged"));
}

TEST_CASE("A long key that comes often is refused", "[pickle]") {
  const std::string key(100'000, 'k');
  const auto value = "}(X" + raw(static_cast<uint32_t>(key.size())) + key +
                     "q\0N"s + repeat("h\0N"s, 20'000) + "u";
  CHECK_THAT(error_of(value), Contains("damaged"));
}

TEST_CASE("Conjugate and negative bits are kept", "[pickle]") {
  const auto plain = value_of(tensor("ComplexFloatStorage", 4)).toTensor();
  const auto conj = value_of(with_metadata("ComplexFloatStorage",
                                           dict({pickled("conj"), "\x88"})))
                        .toTensor();
  CHECK(conj.is_conj());
  CHECK(at::equal(conj, plain.conj()));
  const auto both =
      value_of(with_metadata(
                   "ComplexFloatStorage",
                   dict({pickled("conj"), "\x88", pickled("neg"), "\x88"})))
          .toTensor();
  CHECK(at::equal(both, plain.conj().neg()));
  const auto neg =
      value_of(with_metadata("IntStorage", dict({pickled("neg"), "\x88"})))
          .toTensor();
  CHECK(at::equal(neg, -value_of(tensor("IntStorage", 4)).toTensor()));
  CHECK(same_value(plain, value_of(with_metadata("ComplexFloatStorage", "}"))));

  CHECK_THAT(
      error_of(with_metadata("FloatStorage", dict({pickled("scale"), "\x88"}))),
      Contains("unknown metadata \"scale\""));
  for (const auto& wrong :
       {with_metadata("FloatStorage", dict({pickled("conj"), "\x88"})),
        with_metadata("BoolStorage", dict({pickled("neg"), "\x88"})),
        with_metadata("FloatStorage", dict({pickled("neg"), "K\x01"})),
        with_metadata("FloatStorage", "K\x01")}) {
    CHECK_THAT(error_of(wrong), Contains("it describes a tensor wrongly"));
  }
}

TEST_CASE("A tensor lies within its storage", "[pickle]") {
  const auto error_with = [](size_t argument, const std::string& value) {
    auto arguments = tensor_arguments("FloatStorage", 4);
    arguments.at(argument) = value;
    return error_of(rebuild(arguments));
  };
  const auto big = "\x8a\x08" + raw(INT64_MAX);
  CHECK_THAT(error_with(1, pickled(1)), Contains("larger than its data"));
  CHECK_THAT(error_with(1, pickled(-1)),
             Contains("describes a tensor wrongly"));
  CHECK_THAT(error_with(1, big), Contains("describes a tensor wrongly"));
  CHECK_THAT(error_with(2, tuple({pickled(5)})), Contains("larger than"));
  CHECK_THAT(error_with(3, tuple({pickled(2)})), Contains("larger than"));
  CHECK_THAT(error_with(3, tuple({big})), Contains("tensor wrongly"));
  CHECK_THAT(error_with(2, ")"), Contains("tensor wrongly"));
  CHECK_THAT(error_with(0, pickled(1)), Contains("tensor wrongly"));
  CHECK_THAT(error_with(2, tuple({repeat("K\x01", 65)})),
             Contains("a tensor of 65 dimensions"));
  // With strides of 0 any number of elements fits.
  auto endless = tensor_arguments("FloatStorage", 4);
  endless[2] = tuple({big, big});
  endless[3] = tuple({pickled(0), pickled(0)});
  CHECK_THAT(error_of(rebuild(endless)), Contains("tensor wrongly"));
}

TEST_CASE("Storages are one dtype's", "[pickle]") {
  CHECK_THAT(error_of(storage("FloatStorage", "0", 2) +
                      storage("IntStorage", "0", 2) + "\x86"),
             Contains("it gives storage 0 two dtypes, Float and Int"));
  CHECK_THAT(error_of(storage("WordStorage", "0", 2)),
             Contains("unknown dtype torch.WordStorage"));
  CHECK_THAT(error_of(storage("FloatStorage", "0", -1)), Contains("damaged"));
  CHECK_THAT(error_of(tensor("QInt8Storage", 4)),
             Contains("it holds a quantized tensor"));
  CHECK(describe(value_of(storage("FloatStorage", "0", 2))) ==
        "a Python object of torch.FloatStorage");
}

TEST_CASE("A tensor of the user's class is none of ours", "[pickle]") {
  const auto of_type = [](const std::string& type) {
    return call(global("torch._tensor", "_rebuild_from_type_v2"),
                {global("torch._utils", "_rebuild_tensor_v2"),
                 type,
                 tuple(tensor_arguments("FloatStorage", 4)),
                 dict({pickled("note"), pickled("text")})});
  };
  CHECK(value_of(of_type(global("torch", "Tensor"))).isTensor());
  CHECK(
      value_of(of_type(global("torch.nn.parameter", "Parameter"))).isTensor());
  CHECK(describe(value_of(of_type(global("mine", "ScaledTensor")))) ==
        "a Python object of mine.ScaledTensor");
  CHECK_THAT(error_of(tensor("FloatStorage", 4) + "}b"), Contains("damaged"));
  // Nested calls of any depth.
  std::string nested = ")";
  for (int i = 0; i < 2 * kDeepest; ++i) {
    nested = global("torch._tensor", "_rebuild_from_type_v2") +
             global("torch", "Tensor") + nested + "\x87";
  }
  CHECK_THAT(
      error_of(global("torch._tensor", "_rebuild_from_type_v2") + nested + "R"),
      Contains("deeper than"));
}

TEST_CASE("References take no more memory than the file", "[pickle]") {
  const auto name = std::string(5000, 'n');
  CHECK_THAT(error_of(global(name, "f")), Contains("damaged"));
  CHECK_THAT(error_of(pickled(name) + pickled("f") + "\x93"),
             Contains("damaged"));
  CHECK(describe(value_of(call(global("_codecs", "encode"),
                               {pickled(name), pickled("latin1")}))) ==
        "a Python object of _codecs.encode");
}

TEST_CASE("What is written is read as it was", "[pickle]") {
  auto list = new_list();
  for (const c10::IValue& item :
       {c10::IValue(),
        c10::IValue(true),
        c10::IValue(INT64_MIN),
        c10::IValue(int64_t{1} << 31),
        c10::IValue(-0.0),
        c10::IValue("text"),
        c10::IValue(c10::complex<double>(1, -2)),
        c10::IValue(c10::ivalue::Tuple::create(
            {at::arange(3), new_dict(), c10::ivalue::Tuple::create({})}))}) {
    list.toList().push_back(item);
  }
  auto value = new_dict();
  value.toGenericDict().insert("list", list);
  value.toGenericDict().insert(int64_t{3},
                               at::ones({2}, at::kComplexFloat).conj());
  const auto pickled = ddp::detail::pickle(value);
  const auto read = ddp::detail::unpickle(
      pickled.bytes, [&](const std::string& key, int64_t, int64_t) {
        return pickled.storages.at(std::stoul(key))();
      });
  CHECK(same_value(read, value));
  CHECK(
      std::signbit(read.toGenericDict().at("list").toListRef()[4].toDouble()));
}

TEST_CASE("What cannot be written is named", "[pickle]") {
  auto inner = new_dict();
  inner.toGenericDict().insert("x", value_of(global("mine", "Thing")));
  auto outer = new_dict();
  outer.toGenericDict().insert("args", inner);
  CHECK_THROWS_WITH(ddp::detail::pickle(outer),
                    Contains("but got a Python object of mine.Thing under "
                             R"(["args"]["x"])"));
  inner.toGenericDict().insert_or_assign("x", at::eye(2).to_sparse());
  CHECK_THROWS_WITH(ddp::detail::pickle(outer),
                    Contains("expected dense tensors with data, but got "
                             R"(SparseCPUFloatType under ["args"]["x"])"));
}

TEST_CASE("Numbers of a dict", "[pickle]") {
  auto values = new_dict().toGenericDict();
  values.insert("inf", INFINITY);
  values.insert("nan", NAN);
  values.insert("big", 0x1p63);
  values.insert("small", -0x1p63);
  values.insert("half", 0.5);
  values.insert("whole", 3.0);
  values.insert("tensor", at::scalar_tensor(4, at::kFloat));
  values.insert("inf tensor", at::scalar_tensor(INFINITY, at::kFloat));
  values.insert("bool tensor", at::scalar_tensor(true, at::kBool));
  values.insert(
      "complex",
      at::scalar_tensor(c10::complex<double>(1, 0), at::kComplexFloat));
  values.insert("unsigned", at::full({1}, -1, at::kLong).view(at::kUInt64));
  values.insert("vector", at::ones({2}));
  values.insert("betas", c10::ivalue::Tuple::create({int64_t{0}, 0.9}));
  const DictReader reader(values, "dict");
  CHECK(reader.integer("small") == INT64_MIN);
  CHECK(reader.integer("whole") == 3);
  CHECK(reader.integer("tensor") == 4);
  CHECK(reader.number("tensor") == 4);
  CHECK(std::isinf(reader.number("inf tensor")));
  CHECK(reader.numbers("betas") == std::vector<double>{0, 0.9});
  for (const char* key : {"inf",
                          "nan",
                          "big",
                          "half",
                          "inf tensor",
                          "bool tensor",
                          "complex",
                          "unsigned",
                          "vector"}) {
    CAPTURE(key);
    CHECK_THROWS_WITH(
        reader.integer(key),
        Contains("expected an int as its dict[\"" + std::string(key)));
  }
  CHECK_THROWS_WITH(reader.number("complex"),
                    Contains("expected a number as its dict[\"complex\"]"));
}

}  // namespace pickle_test
