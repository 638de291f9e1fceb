#include "ddp/exported/guard.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <memory>

#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/frontend/lexer.h>
#include <torch/csrc/jit/frontend/parser.h>

namespace ddp::detail {
namespace {

namespace jit = torch::jit;
using jit::TreeRef;
using Path = std::vector<std::string>;

// LibTorch's parser and the destructors of its trees recurse.
constexpr int kMostTokens = 10000;
constexpr int kDeepestGuard = 200;
const std::string kGroup = "__group";

c10::IValue call(const Operation& operation, Values stack) {
  operation(stack, {});
  return stack.at(0);
}

bool is_true(const c10::IValue& value) {
  return !call(number_operation("torch.sym_not"), {value}).toBool();
}

bool ends_value(int token) {
  return token == ')' || token == ']' || token == jit::TK_IDENT ||
         token == jit::TK_NUMBER || token == jit::TK_STRINGLITERAL ||
         token == jit::TK_TRUE || token == jit::TK_FALSE;
}

bool compares(int operation) {
  return operation == '<' || operation == '>' || operation == jit::TK_LE ||
         operation == jit::TK_GE || operation == jit::TK_EQ ||
         operation == jit::TK_NE;
}

/// Makes a call of each pair of parentheses that groups, because LibTorch's
/// tree has no groups: (x or y) and z would be x or y and z.
/// @throws c10::Error for a text that is long, or nested deeply.
std::string with_groups(const std::string& text) {
  // The lexer recurses at the end of a line.
  TORCH_CHECK(text.find('\n') == text.npos, "Expected one line");
  jit::Lexer lexer(std::make_shared<jit::Source>(text));
  std::string result;
  bool follows_value = false;
  int depth = 0;
  for (int count = 0; lexer.cur().kind != jit::TK_EOF; ++count) {
    const auto token = lexer.next();
    const bool is_value = ends_value(token.kind);
    if (token.kind == ')' || token.kind == ']') {
      --depth;
    } else if (token.kind == '(' || token.kind == '[' ||
               token.kind == jit::TK_POW || token.kind == jit::TK_IF ||
               !(follows_value || is_value)) {
      ++depth;
    }
    TORCH_CHECK(depth <= kDeepestGuard && count < kMostTokens,
                "Expected an expression that is shorter and nested less");
    result += token.kind == '(' && !follows_value ? kGroup : "";
    result += token.text() + " ";
    follows_value = is_value;
  }
  return result;
}

template <typename Number>
Number read_number(const std::string& text) {
  Number number = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  TORCH_CHECK(error == std::errc() && rest == end,
              "Expected a number of 64 bits, but got ",
              text);
  return number;
}

/// The key of an index: "0" or "key".
std::string key_of(const jit::Subscript& tree) {
  const auto keys = tree.subscript_exprs();
  TORCH_CHECK(keys.size() == 1, "Expected an index of one number or string");
  return keys[0].kind() == jit::TK_STRINGLITERAL
             ? jit::StringLiteral(keys[0]).text()
             : jit::Const(keys[0]).text();
}

/// Returns {"L", "x", "0", "key"} for L['x'][0]['key'] and L['x'][0].key, and
/// {"L", "x", "size()", "1"} for L['x'].size()[1].
Path path_of(TreeRef tree) {
  Path path;
  std::string call;
  for (; tree->kind() != jit::TK_VAR; tree = tree->tree(0)) {
    if (tree->kind() == jit::TK_APPLY) {
      TORCH_CHECK(jit::Apply(tree).inputs().empty() &&
                      jit::Apply(tree).attributes().empty(),
                  "Expected a method without arguments");
      call += "()";
      continue;
    }
    path.push_back((tree->kind() == '.' ? jit::Select(tree).selector().name()
                                        : key_of(jit::Subscript(tree))) +
                   call);
    call.clear();
  }
  path.push_back(jit::Var(tree).name().name() + call);
  std::reverse(path.begin(), path.end());
  return path;
}

Expression constant(const c10::IValue& value) {
  return [=](const Values& /*inputs*/) { return value; };
}

/// Makes a function of a tree of LibTorch.
class Builder {
 public:
  explicit Builder(const FindName& find) : find_(find) {}

  Expression build(const TreeRef& tree) const {
    static const std::map<int, std::string> binary{
        {jit::TK_OR, ""},
        {jit::TK_AND, ""},
        {'<', "_operator.lt"},
        {'>', "_operator.gt"},
        {jit::TK_LE, "_operator.le"},
        {jit::TK_GE, "_operator.ge"},
        {jit::TK_EQ, "_operator.eq"},
        {jit::TK_NE, "_operator.ne"},
        {'|', "_operator.or_"},
        {'^', "_operator.xor"},
        {'&', "_operator.and_"},
        {'+', "_operator.add"},
        {'-', "_operator.sub"},
        {'*', "_operator.mul"},
        {'/', "_operator.truediv"},
        {'%', "_operator.mod"},
        {jit::TK_FLOOR_DIV, "_operator.floordiv"},
        {jit::TK_POW, "_operator.pow"}};
    // Each operation is the left operand of the next one.
    std::vector<Step> steps;
    auto first = tree;
    for (; binary.count(first->kind()) > 0; first = first->tree(0)) {
      TORCH_CHECK(!compares(first->kind()) || !compares(first->tree(0)->kind()),
                  "Expected no chain of comparisons, such as 1 < x < 3");
      steps.push_back({first->kind(),
                       number_operation(binary.at(first->kind())),
                       build(first->tree(1))});
    }
    if (!steps.empty()) {
      std::reverse(steps.begin(), steps.end());
      return chain(build(first), steps);
    }
    switch (tree->kind()) {
      case jit::TK_CONST: {
        const auto& text = jit::Const(tree).text();
        return text.find_first_of(".eE") == text.npos
                   ? constant(read_number<int64_t>(text))
                   : constant(read_number<double>(text));
      }
      case jit::TK_TRUE:
      case jit::TK_FALSE:
        return constant(tree->kind() == jit::TK_TRUE);
      case jit::TK_NOT:
        return apply("torch.sym_not", {build(tree->tree(0))});
      case jit::TK_UNARY_MINUS:
        return apply("_operator.neg", {build(tree->tree(0))});
      case jit::TK_IF_EXPR:
        return [condition = build(tree->tree(0)),
                chosen = build(tree->tree(1)),
                other = build(tree->tree(2))](const Values& inputs) {
          return is_true(condition(inputs)) ? chosen(inputs) : other(inputs);
        };
      case jit::TK_APPLY:
        return function(jit::Apply(tree));
      case jit::TK_SUBSCRIPT:
      case jit::TK_VAR:
      case '.':
        return input(path_of(tree));
      default:
        TORCH_CHECK(false,
                    "Expected an expression over sizes, but got: ",
                    jit::kindToString(tree->kind()));
    }
  }

 private:
  struct Step {
    int kind;
    Operation operation;  // null for `and` and `or`
    Expression right;
  };

  static Expression chain(const Expression& first,
                          const std::vector<Step>& steps) {
    return [=](const Values& inputs) {
      auto left = first(inputs);
      for (const auto& [kind, operation, right] : steps) {
        if (operation) {
          left = call(operation, {left, right(inputs)});
        } else if (kind == jit::TK_OR && is_true(left)) {
          return c10::IValue(true);
        } else {  // `and` binds closer than `or`
          left =
              (kind == jit::TK_OR || is_true(left)) && is_true(right(inputs));
        }
      }
      return left;
    };
  }

  static Expression apply(const std::string& name,
                          const std::vector<Expression>& operands) {
    return
        [operation = number_operation(name), operands](const Values& inputs) {
          auto result = operands.at(0)(inputs);
          for (size_t i = 1; i < operands.size(); ++i) {  // max(x, y, z)
            result = call(operation, {result, operands[i](inputs)});
          }
          return operands.size() > 1 ? result : call(operation, {result});
        };
  }

  Expression function(const jit::Apply& tree) const {
    static const std::map<std::string, std::string> others{
        {"max", "torch.sym_max"},
        {"Max", "torch.sym_max"},
        {"min", "torch.sym_min"},
        {"Min", "torch.sym_min"},
        {"Add", "_operator.add"},
        {"Mul", "_operator.mul"},
        {"Pow", "_operator.pow"},
        {"Mod", "_operator.mod"},
        {"PythonMod", "_operator.mod"},
        {"FloorDiv", "_operator.floordiv"},
        {"CleanDiv", "_operator.floordiv"}};
    const auto arguments = tree.inputs();
    if (arguments.empty()) {
      return input(path_of(tree));
    }
    const auto name = c10::Join(".", path_of(tree.callee()));
    std::vector<Expression> operands;
    for (const auto& argument : arguments) {
      operands.push_back(build(argument));
    }
    if ((name == kGroup || name == "Integer") && operands.size() == 1) {
      return operands[0];
    }
    const auto other = others.find(name);
    const bool is_unary = other == others.end();
    const auto operation = is_unary ? name : other->second;
    TORCH_CHECK(number_operation(operation) && tree.attributes().empty() &&
                    (!is_unary || operands.size() == 1),
                "Expected another function than ",
                name,
                " of ",
                operands.size());
    return apply(operation, operands);
  }

  /// An input or a symbol, or a size, stride or offset of an input.
  Expression input(Path path) const {
    if (path == Path{"math", "inf"}) {
      return constant(std::numeric_limits<double>::infinity());
    }
    const auto name = c10::Join(".", path);
    std::string property;
    int64_t at = 0;
    if (path.size() > 1 && path.back() == "storage_offset()") {
      property = path.back();
    } else if (path.size() > 2 &&
               (path.end()[-2] == "size()" || path.end()[-2] == "stride()")) {
      at = read_number<int64_t>(path.back());
      path.pop_back();
      property = path.back();
    }
    path.resize(path.size() - (property.empty() ? 0 : 1));
    const auto found = find_(path);
    TORCH_CHECK(found, "Expected a value of an input, but got ", name);
    if (property.empty()) {
      return found;
    }
    return [=](const Values& inputs) -> c10::IValue {
      const auto tensor = found(inputs).toTensor();
      return property == "size()"     ? tensor.size(at)
             : property == "stride()" ? tensor.stride(at)
                                      : tensor.storage_offset();
    };
  }

  const FindName& find_;
};

}  // namespace

Expression parse_expression(const std::string& text, const FindName& find) {
  try {
    jit::Parser parser(std::make_shared<jit::Source>(with_groups(text)));
    const auto tree = parser.parseExp();
    TORCH_CHECK(parser.lexer().cur().kind == jit::TK_EOF,
                "Expected an operator before \"",
                parser.lexer().cur().text(),
                "\"");
    return Builder(find).build(tree);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception&) {  // LibTorch's parser has errors of its own
    TORCH_CHECK(false, "Expected an expression of Python");
  }
}

}  // namespace ddp::detail
