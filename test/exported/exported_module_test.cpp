// Trains an ExportedModule by everything that trains a torch::nn::Module.
// DDP_EXPORTED_NET names the file of export_net.py.
#include "ddp/exported_module.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "ddp/amp/autocast.h"
#include "ddp/amp/grad_scaler.h"
#include "ddp/checkpoint.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exported/graph.h"
#include "ddp/exported/guard.h"
#include "ddp/nn/checkpoint_activations.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace exported_module_test {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

std::string net_file() {
  const char* path = std::getenv("DDP_EXPORTED_NET");
  TORCH_CHECK(path != nullptr,
              "Expected a file of export_net.py in DDP_EXPORTED_NET");
  return path;
}

Tensor batch(int seed = 1) {
  torch::manual_seed(seed);
  return torch::randn({8, 6});
}

bool are_equal(const Tensors& left, const Tensors& right) {
  bool are = left.size() == right.size();
  for (size_t i = 0; are && i < left.size(); ++i) {
    are = left[i].equal(right[i]);
  }
  return are;
}

Tensors gradients_of(const torch::nn::Module& module) {
  Tensors gradients;
  for (const auto& parameter : module.parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  return gradients;
}

// The cases that fork come first: a process with threads cannot.
TEST_CASE("the sharded optimizer steps a program as the plain one does",
          "[ranks]") {
  const auto train = [](bool is_sharded) {
    ExportedModule net(net_file());
    DistributedDataParallel model(net);
    const auto make = [](auto groups) {
      return std::make_unique<torch::optim::AdamW>(
          groups, torch::optim::AdamWOptions(0.01));
    };
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (is_sharded) {
      optimizer =
          std::make_unique<ZeroRedundancyOptimizer>(model->parameters(), make);
    } else {
      optimizer = make(
          std::vector<torch::optim::OptimizerParamGroup>{model->parameters()});
    }
    for (int step = 0; step < 3; ++step) {
      const auto x = batch(10 * step + rank());
      optimizer->zero_grad();
      model->forward(x).toTensor().square().sum().backward();
      optimizer->step();
    }
    return net->parameters();
  };
  const auto ends = test::run_rank_processes(2, [&](int /*rank*/) {
    torch::set_num_threads(1);
    init_process_group(ProcessGroupOptions().backend("gloo"));
    TORCH_CHECK(are_equal(train(true), train(false)), "the parameters differ");
    destroy_process_group();
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.exit_code == 0);
  }
}

TEST_CASE("a save that is killed leaves the old file", "[ranks]") {
  const test::TemporaryFolder folder;
  const auto path = folder / "net.pt2";
  const auto read = [&path] {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  ExportedModule(net_file())->save(path);
  const auto old = read();
  REQUIRE(old.size() > 2000);
  const auto ends = test::run_rank_processes(1, [&](int /*rank*/) {
    ExportedModule net(path);
    net->parameters()[0].detach().fill_(7);
    // The kernel kills a process that writes more.
    const rlimit least{2000, 2000};
    ::setrlimit(RLIMIT_FSIZE, &least);
    std::signal(SIGXFSZ, SIG_DFL);
    net->save(path);
  });
  CHECK(ends[0].signal == SIGXFSZ);
  CHECK(read() == old);
}

TEST_CASE("a save that fails is an error of LibTorch that names the file") {
  const test::TemporaryFolder folder;
  const auto path = folder / "missing/net.pt2";
  CHECK_THROWS_WITH(ExportedModule(net_file())->save(path),
                    Catch::Matchers::Contains("Cannot save " + path + ": "));
  CHECK_THROWS_AS(ExportedModule(net_file())->save(path), c10::Error);
}

TEST_CASE("recomputed activations get the same draws of dropout") {
  ExportedModule net(net_file());
  const auto step = [&](bool recompute) {
    net->zero_grad();
    const auto x = batch();
    const auto part = [&net](const Tensor& y) {
      return net->forward(y).toTensor();
    };
    (recompute ? checkpoint_activations(part, x) : part(x))
        .square()
        .sum()
        .backward();
    return gradients_of(*net);
  };
  const auto plain = step(false);
  CHECK(are_equal(step(true), plain));
  CHECK_FALSE(plain[0].equal(torch::zeros_like(plain[0])));
}

TEST_CASE("autocast computes a program in the narrow type") {
  ExportedModule net(net_file());
  net->eval();
  torch::nn::Sequential plain(torch::nn::Linear(6, 16),
                              torch::nn::Tanh(),
                              torch::nn::Dropout(0.5),
                              torch::nn::Linear(16, 4));
  plain->eval();
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) {
      plain->parameters()[i].copy_(net->parameters()[i]);
    }
  }
  const AutocastGuard autocast(torch::kCPU);
  const auto out = net->forward(batch()).toTensor();
  CHECK(out.scalar_type() == torch::kBFloat16);
  CHECK(out.equal(plain->forward(batch())));
  out.square().sum().backward();
  CHECK(net->parameters()[0].grad().scalar_type() == torch::kFloat);
}

TEST_CASE("a scaler skips the step of a program whose gradients overflow") {
  ExportedModule net(net_file());
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  GradScaler scaler;
  const auto step = [&](const Tensor& loss) {
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    const bool is_done = scaler.step(optimizer);
    scaler.update();
    return is_done;
  };
  const auto before = net->parameters()[0].clone();
  CHECK_FALSE(step(net->forward(batch()).toTensor().sum() * 1e38));
  CHECK(net->parameters()[0].equal(before));
  CHECK(step(net->forward(batch()).toTensor().sum()));
  CHECK_FALSE(net->parameters()[0].equal(before));
}

TEST_CASE("operations on numbers have the results of Python's") {
  struct Case {
    const char* name;
    std::vector<c10::IValue> numbers;
    c10::IValue result;
  };
  const auto large = int64_t{1} << 62;
  const std::vector<Case> cases{{"_operator.add", {large, 1}, large + 1},
                                {"_operator.add", {1, 0.5}, 1.5},
                                {"_operator.mul", {-3, true}, -3},
                                {"_operator.floordiv", {-7, 2}, -4},
                                {"_operator.floordiv", {7.0, -2}, -4.0},
                                {"_operator.mod", {-7, 2}, 1},
                                {"_operator.mod", {7, -3}, -2},
                                {"_operator.truediv", {1, 3}, 1.0 / 3},
                                {"_operator.pow", {3, 2}, 9},
                                {"_operator.pow", {2, -1}, 0.5},
                                {"_operator.lt", {large, large + 1}, true},
                                {"_operator.eq", {2, 2.0}, true},
                                {"_operator.and_", {true, false}, false},
                                {"torch.sym_not", {false}, true},
                                {"torch.sym_int", {-2.5}, -2},
                                {"torch.sym_float", {3}, 3.0},
                                {"torch.sym_max", {3, -4}, 3},
                                {"torch._sym_sqrt", {2}, std::sqrt(2.0)}};
  for (const auto& [name, numbers, result] : cases) {
    INFO(name << " of " << numbers);
    auto stack = numbers;
    detail::number_operation(name)(stack, {});
    REQUIRE(stack.size() == 1);
    CHECK(stack[0] == result);
  }
  std::vector<c10::IValue> stack{1, 0};
  CHECK_THROWS_AS(detail::number_operation("_operator.floordiv")(stack, {}),
                  c10::Error);
  CHECK(detail::number_operation("torch.sym_ite") == nullptr);
}

/// Parses an expression over the tensor x and the numbers n, m, f and big.
c10::IValue value_of(const std::string& text) {
  const std::map<std::vector<std::string>, c10::IValue> values{
      {{"L", "x"}, torch::zeros({26}).as_strided({4, 6}, {6, 1}, 2)},
      {{"L", "args", "0"}, torch::zeros({4, 6})},
      {{"L", "args", "1", "it's"}, 5},
      {{"L", "args", "1", "a\"b\\"}, 6},
      {{"L", "args", "1", "\n"}, 8},
      {{"L", "n"}, 7},
      {{"L", "m"}, -3},
      {{"L", "f"}, 2.5},
      {{"L", "big"}, int64_t{1} << 62},
      {{"n"}, 7}};
  const auto find =
      [&](const std::vector<std::string>& path) -> detail::Expression {
    const auto found = values.find(path);
    if (found == values.end()) {
      return nullptr;
    }
    return [value = found->second](const auto& /*inputs*/) { return value; };
  };
  return detail::parse_expression(text, find)({});
}

std::string repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

// Python has computed the values.
TEST_CASE("expressions over sizes have Python's values") {
  const std::vector<std::pair<std::string, c10::IValue>> cases{
      {"(L['x'].size()[0] % 2) == 0", true},
      {"L['x'].size()[1]*L['x'].size()[0] > 24", false},
      {"L['x'].stride()[0] + L['x'].storage_offset()", 8},
      {"L['args'][0].size()[1] - L['args'][1]['it\\'s']", 1},
      {"L['args'][1][\"it's\"] * 2", 10},
      {"L['args'][1]['a\"b\\\\']", 6},
      {"L['args'][1]['\\n']", 8},
      {"(-1)*L['n'] // 2", -4},
      {"L['n'] // L['m']", -3},
      {"L['n'] % L['m']", -2},
      {"L['m'] % 4", 1},
      {"L['m'] // 2.0", -2.0},
      {"-L['f'] % 1.5", 0.5},
      {"L['n'] / 2", 3.5},
      {"(3/2)*L['n'] == 10.5", true},
      {"2 ** 3 ** 2", 512},
      {"-2 ** 2", -4},
      {"2 ** -1", 0.5},
      {"(-2) ** 3", -8},
      {"2.0 ** torch.sym_float((-1)*L['n'])", 0.0078125},
      {"torch.sym_float(L['n']) ** (-0.5)", 0.37796447300922725},
      {"L['f'] ** 2", 6.25},
      {"not L['n'] == 7 or L['m'] < 0 and L['f'] > 3", false},
      {"not not L['n'] > 3", true},
      {"L['n'] > 3 or L['m'] > 0 and L['f'] > 3", true},
      {"L['n'] > 9 or L['m'] < 0 and L['f'] > 3", false},
      {"(L['n'] > 3 or L['m'] > 0) and L['f'] > 3", false},
      {"L['n'] > 9 and L['m'] > 0 or L['f'] > 2", true},
      {"L['n'] > 9 and (L['m'] > 0 or L['f'] > 2)", false},
      {"1 > 2 or 2 > 1 and 1 > 2 or 3 > 2 and 1 > 2", false},
      {"(1 < L['n']) == (L['m'] < 0)", true},
      {"(3 < 2) < 1", true},
      {"not (1 > 2 or 1 < 2) or 1 > 2 and not 1 > 2", false},
      {"5 if L['n'] > 9 else 6 if L['m'] > 0 else 7", 7},
      {"L['n'] > 9 and 1 // 0 > 1", false},
      {"L['n'] > 3 or 1 // 0 > 1", true},
      {"(L['n'] | 8) ^ L['n'] & 3", 12},
      {"max(L['n'], L['m'], L['f']) + min(L['m'], 2)", 4},
      {"abs(L['m']) - abs(-2.5)", 0.5},
      {"math.trunc(-2.7)", -2},
      {"math.floor(-2.5) + math.ceil(-2.5)", -5},
      {"round(2.5) + round(3.5) + round(-0.5)", 6},
      {"(2 if L['n'] > 9 else 3) * 2 if L['m'] < 0 and 1 < 2 else 5", 6},
      {"-L['f'] ** 2", -6.25},
      {"2 ** -L['n'] * 128", 1.0},
      {"2 ** -1 ** 2", 0.5},
      {"(2 ** 3) ** 2", 64},
      {"0 ** 0 + (-1) ** 1000000000000000001", 0},
      {"(-2) ** 63", -9223372036854775807 - 1},
      {"-9223372036854775808 // 2", -4611686018427387904},
      {"(-9223372036854775807 - 1) % -1", 0},
      {"7 & 3 == 3", true},
      {"1 | 2 + 4", 7},
      {"not L['n'] % 2", false},
      {"1 + 1 # 3", 2},
      {"FloorDiv(Mul(Integer(-1), n), Integer(2))", -4},
      {"Max(n, Min(Integer(9), Integer(8)), Mod(n, Integer(4)))", 8},
      {"math.sqrt(2) + math.log2(8)", 4.414213562373095},
      {"math.inf > 1e300", true},
      {"-math.inf < -1e+300", true},
      {"1e-05", 1e-05},
      {".5", 0.5},
      {"L['n'] == True", false},
      {"(L['n'] > 3) + (L['n'] > 5)", 2},
      {"9007199254740993 == 9007199254740992.0", false},
      {"9007199254740993 > 9007199254740992.0", true},
      {"L['big'] + 1 > L['big']", true},
      {"3 * (-5) - -2 + 4", -9},
      {"1 - 2 - 3", -4},
      {"24 // 5 // 2", 2},
      {"24 / 5 * 2", 9.6},
      {"7 - 2 * 3 % 4", 5},
      {"Add(Mul(Integer(-2), n), Integer(3))", -11},
      {"Mul(Integer(2), Integer(3), Integer(4))", 24},
  };
  for (const auto& [text, value] : cases) {
    INFO(text);
    const auto result = value_of(text);
    CHECK(result.isBool() == value.isBool());
    CHECK(result.toScalar().toDouble() == value.toScalar().toDouble());
  }
  CHECK(value_of("1" + repeated(" + 1", 4000)).toInt() == 4001);
  CHECK(value_of("1 < 2" + repeated(" and (1 < 2)", 1500)).toBool());
  CHECK_FALSE(value_of("math.inf - math.inf == math.inf - math.inf").toBool());
}

TEST_CASE("other text than an expression over sizes is an error") {
  const std::string text = GENERATE("",
                                    " ",
                                    "(",
                                    "1 +",
                                    "1 2",
                                    "f(3)",
                                    "1 = 1",
                                    "1\n2",
                                    "(1",
                                    "1)",
                                    "1, 2",
                                    "(1, 2)",
                                    "()",
                                    "[1]",
                                    "{1: 2}",
                                    "1j",
                                    "0x10",
                                    "'1'",
                                    "None",
                                    "~1",
                                    "+1",
                                    "*n",
                                    "1 << 2",
                                    "1 @ 2",
                                    "n in n",
                                    "1 is 1",
                                    "1 < 2 < 3",
                                    "1 < L['n'] == 6",
                                    "[n for n in L]",
                                    "abs()",
                                    "max()",
                                    "abs(x=1)",
                                    "max(1, key=2)",
                                    "n()",
                                    "size()[0]",
                                    "storage_offset()",
                                    "L.size()",
                                    "math.inf()",
                                    "L['x'][0:1]",
                                    "L['x'][0, 1]",
                                    "L['x'](1)",
                                    "L['x'].size().size()",
                                    "L['x'].storage_offset",
                                    "1 // 0",
                                    "1 % 0",
                                    "1.5 % 0.0",
                                    "1 / 0",
                                    "0 ** -1",
                                    "2 ** 64",
                                    "3 ** 1000000000000000000",
                                    "L['big'] * 2",
                                    "-(-9223372036854775807 - 1)",
                                    "(-9223372036854775807 - 1) // -1",
                                    "9223372036854775808",
                                    "1e999",
                                    "(-8) ** 0.5",
                                    "math.sqrt(-1)",
                                    "math.log(0)",
                                    "math.exp(1000)",
                                    "math.trunc(math.inf)",
                                    "math.trunc(math.inf - math.inf)",
                                    "math.pi",
                                    "math.trunc(1, 2)",
                                    "round(1.5, 2)",
                                    "math.sin(1)",
                                    "__import__('os')",
                                    "lambda: 0",
                                    "L",
                                    "L['x'",
                                    "L['x",
                                    "L['x']['",
                                    "L['missing']",
                                    "L['x'].shape[0]",
                                    "L['x'].size()",
                                    "L['x'].size()[2]",
                                    "L['x'].size(0)",
                                    "L['n'].size()[0]",
                                    "L['x'] + 1",
                                    "L['\\x41']",
                                    "Symbol('s0', integer=True)",
                                    "Symbol('n'");
  INFO(text);
  CHECK_THROWS_AS(value_of(text), c10::Error);
}

TEST_CASE("an expression that is long or nested deeply is an error") {
  const std::string text = GENERATE("(",
                                    "-",
                                    "~",
                                    "*",
                                    "[",
                                    "{",
                                    "{1: ",
                                    "not ",
                                    "1 ** ",
                                    "2**-",
                                    "abs(",
                                    "1 if 1 else ",
                                    "1 if ",
                                    "L[",
                                    "f(-",
                                    "(-1)*(",
                                    "\n",
                                    "#\n",
                                    "\\\n",
                                    "storage_offset()[",
                                    "1 - (");
  const size_t times = GENERATE(1000, 100000);
  CHECK_THROWS_AS(value_of(repeated(text, times) + "1"), c10::Error);
  for (const std::string end : {"[0]", ".a", "()", " if 1 else 1"}) {
    CHECK_THROWS_AS(value_of("L" + repeated(end, times)), c10::Error);
  }
  for (const std::string end : {" + 1", " or 1", " and 1 or 1", " % 1"}) {
    CHECK_THROWS_AS(value_of("1" + repeated(end, times * 10)), c10::Error);
  }
  for (const std::string start : {"(", "abs("}) {
    CHECK(value_of(repeated(start, 95) + "1" + repeated(")", 95)).toInt() == 1);
  }
}

/// Two steps, of which the second is from a checkpoint in another module.
TEST_CASE("a checkpoint continues a program's training") {
  const test::TemporaryFolder folder;
  const auto train = [&](ExportedModule net, bool resume, int64_t until) {
    torch::optim::Adam optimizer(net->parameters(), 0.1);
    Checkpoint checkpoint(net);
    checkpoint.add("optimizer", optimizer);
    if (resume) {
      checkpoint.load(folder / "last.pt");
    }
    for (auto step = checkpoint.epoch(); step < until; ++step) {
      const auto x = batch(static_cast<int>(step));
      optimizer.zero_grad();
      net->forward(x).toTensor().square().sum().backward();
      optimizer.step();
    }
    checkpoint.epoch(until).save(folder / "last.pt");
    return net->parameters();
  };
  const auto whole = train(ExportedModule(net_file()), false, 2);
  train(ExportedModule(net_file()), false, 1);
  CHECK(are_equal(train(ExportedModule(net_file()), true, 2), whole));
}

ExportedModule shared_net() {
  return ExportedModule(
      net_file() + ".shared.pt2",
      ExportedModuleOptions().eval_program(net_file() + ".shared_eval.pt2"));
}

/// Makes a step in which each tensor takes part.
void step(ExportedModule& net) {
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  optimizer.zero_grad();
  net->forward(batch()).toTensor().square().sum().backward();
  optimizer.step();
}

/// Returns the values of a module, and whether they share memory as in Python.
Tensors values_of(const ExportedModule& net) {
  const auto parameters = net->named_parameters();
  const auto buffers = net->named_buffers();
  const auto& weight = parameters["a.weight"];
  CHECK(parameters["b.weight"].equal(weight.t()));
  CHECK(parameters["b.weight"].is_alias_of(weight));
  CHECK(buffers["many"].equal(buffers["one"].expand({3, 6})));
  CHECK(buffers["many"].is_alias_of(buffers["one"]));
  auto values = parameters.values();
  for (const auto& buffer : buffers.values()) {
    values.push_back(buffer);
  }
  return values;
}

TEST_CASE("tensors that share memory share it wherever they go") {
  const test::TemporaryFolder folder;
  auto net = shared_net();
  const auto weight = net->parameters()[0];
  step(net);
  const auto way = GENERATE(as<std::string>(),
                            "clone",
                            "clone to a device",
                            "conversion",
                            "torch::save",
                            "checkpoint",
                            "file");
  CAPTURE(way);
  auto other = shared_net();
  if (way == "clone" || way == "clone to a device") {
    other = ExportedModule(std::dynamic_pointer_cast<ExportedModuleImpl>(
        way == "clone" ? net->clone() : net->clone(torch::kCPU)));
  } else if (way == "conversion") {
    other = net;
    net = ExportedModule(
        std::dynamic_pointer_cast<ExportedModuleImpl>(net->clone()));
    other->to(torch::kDouble);
    CHECK(other->parameters()[0].scalar_type() == torch::kDouble);
    other->to(torch::kCPU, torch::kFloat);
    CHECK(other->parameters()[0].is_same(weight));
  } else if (way == "torch::save") {
    torch::save(net, folder / "net.pt");
    torch::load(other, folder / "net.pt");
  } else if (way == "checkpoint") {
    Checkpoint(net).save(folder / "net.pt");
    Checkpoint(other).load(folder / "net.pt");
  } else {
    net->save(folder / "net.pt2");
    other = ExportedModule(folder / "net.pt2");
  }
  CHECK_FALSE(other->parameters()[0].is_alias_of(net->parameters()[0]));
  CHECK(are_equal(values_of(other), values_of(net)));
  step(net);
  step(other);
  CHECK(are_equal(values_of(other), values_of(net)));
}

TEST_CASE("a constant of the program for eval() shares memory with a buffer") {
  auto net = shared_net();
  step(net);
  step(net);
  const ExportedModule copy(
      std::dynamic_pointer_cast<ExportedModuleImpl>(net->clone()));
  for (auto one : {net, copy}) {
    one->eval();
    CHECK(one->forward(batch()).toTensor().equal(batch() * 0.25));
    one->to(torch::kCPU, torch::kDouble);
    CHECK(one->forward(batch()).toTensor().equal(batch() * 0.25));
  }
}

TEST_CASE("tensors that no longer share memory are an error") {
  auto net = shared_net();
  const auto way = GENERATE(0, 1);
  if (way == 0) {
    net->named_children()["b"]->to(torch::kDouble);
  } else {
    net->named_buffers()["many"].set_data(torch::ones({3, 6}));
  }
  CHECK_THROWS_WITH(
      net->forward(batch()),
      Catch::Contains(way == 0 ? "Expected \"b.weight\" to share memory with "
                                 "\"a.weight\""
                               : "Expected \"many\" to share memory with "
                                 "\"one\""));
}

TEST_CASE("a change of a tensor is a change of those that share its memory") {
  auto net = shared_net();
  const auto loss = net->forward(batch()).toTensor().sum();
  {
    const torch::NoGradGuard no_grad;
    net->parameters()[0].add_(1);  // a.weight; the graph has b.weight
  }
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("inplace operation"));
}

}  // namespace exported_module_test
}  // namespace ddp
