#include "ddp/exported/guard.h"

#include <cctype>
#include <charconv>
#include <limits>
#include <map>
#include <utility>

namespace ddp::detail {
namespace {

constexpr int kDeepestGuard = 300;  // a pair of parentheses counts three

using Step = std::pair<Operation, Expression>;
using Tokens = std::vector<std::pair<std::string, std::string>>;

c10::IValue call(const Operation& operation, Values stack) {
  operation(stack, {});
  return stack.at(0);
}

bool is_true(const c10::IValue& value) {
  return !call(number_operation("torch.sym_not"), {value}).toBool();
}

bool is_in_name(char one) {
  return std::isalnum(static_cast<unsigned char>(one)) != 0 || one == '_';
}

/// Python's operators that take the left operand first, the loosest first.
const std::vector<Tokens>& levels() {
  static const std::vector<Tokens> all{
      {{"|", "_operator.or_"}},
      {{"^", "_operator.xor"}},
      {{"&", "_operator.and_"}},
      {{"+", "_operator.add"}, {"-", "_operator.sub"}},
      {{"//", "_operator.floordiv"},
       {"/", "_operator.truediv"},
       {"*", "_operator.mul"},
       {"%", "_operator.mod"}}};
  return all;
}

const Tokens& comparisons() {
  static const Tokens all{{"<=", "_operator.le"},
                          {"<", "_operator.lt"},
                          {">=", "_operator.ge"},
                          {">", "_operator.gt"},
                          {"==", "_operator.eq"},
                          {"!=", "_operator.ne"}};
  return all;
}

/// Parses by recursive descent. Operators of one level make one expression, so
/// a long text is not a deep one.
class Parser {
 public:
  Parser(const std::string& text, const FindName& find)
      : text_(text), find_(find) {}

  Expression parse() {
    accept("");
    auto whole = choice();
    if (at_ < text_.size()) {
      refuse("an operator");
    }
    return whole;
  }

 private:
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepestGuard) {
        parser_.refuse("a text with less nesting");
      }
    }
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void refuse(const std::string& expected) const {
    TORCH_CHECK(
        false, "Expected ", expected, " at \"", text_.substr(at_, 40), "\"");
  }

  /// Skips a token, and spaces after it, if it is the next one.
  bool accept(const std::string& token) {
    const auto end = at_ + token.size();
    if (text_.compare(at_, token.size(), token) != 0 ||
        (is_in_name(token[0]) && end < text_.size() &&
         is_in_name(text_[end]))) {
      return false;
    }
    at_ = std::min(text_.find_first_not_of(" \n", end), text_.size());
    return true;
  }

  void expect(const std::string& token) {
    if (!accept(token)) {
      refuse("\"" + token + "\"");
    }
  }

  /// Returns the operation of the next token, or null.
  Operation accept_any(const Tokens& tokens) {
    for (const auto& [token, name] : tokens) {
      if (accept(token)) {
        return number_operation(name);
      }
    }
    return nullptr;
  }

  Expression choice() {
    const Nested nested(*this);
    auto chosen = junction(false);
    if (!accept("if")) {
      return chosen;
    }
    const auto condition = junction(false);
    expect("else");
    return [=, other = choice()](const Values& inputs) {
      return is_true(condition(inputs)) ? chosen(inputs) : other(inputs);
    };
  }

  /// Operands of "and", or "or" between those.
  Expression junction(bool is_and) {
    std::vector<Expression> operands;
    do {
      operands.push_back(is_and ? negation() : junction(true));
    } while (accept(is_and ? "and" : "or"));
    if (operands.size() == 1) {
      return operands[0];
    }
    return [=](const Values& inputs) -> c10::IValue {
      for (const auto& operand : operands) {
        if (is_true(operand(inputs)) != is_and) {
          return !is_and;
        }
      }
      return is_and;
    };
  }

  Expression negation() {
    const Nested nested(*this);
    if (!accept("not")) {
      return comparison();
    }
    return [operand = negation()](const Values& inputs) -> c10::IValue {
      return !is_true(operand(inputs));
    };
  }

  template <typename Operand>
  std::vector<Step> steps(const Tokens& tokens, const Operand& operand) {
    std::vector<Step> all;
    while (auto operation = accept_any(tokens)) {
      all.emplace_back(std::move(operation), operand());
    }
    return all;
  }

  Expression comparison() {
    const auto first = binary(0);
    const auto others = steps(comparisons(), [this] { return binary(0); });
    if (others.empty()) {
      return first;
    }
    return [=](const Values& inputs) -> c10::IValue {
      auto left = first(inputs);
      for (const auto& [compare, other] : others) {
        auto right = other(inputs);
        if (!call(compare, {left, right}).toBool()) {
          return false;
        }
        left = std::move(right);
      }
      return true;
    };
  }

  Expression binary(size_t level) {
    if (level == levels().size()) {
      return unary();
    }
    const auto first = binary(level + 1);
    const auto others =
        steps(levels()[level], [&] { return binary(level + 1); });
    if (others.empty()) {
      return first;
    }
    return [=](const Values& inputs) {
      auto result = first(inputs);
      for (const auto& [operation, other] : others) {
        result = call(operation, {result, other(inputs)});
      }
      return result;
    };
  }

  Expression unary() {
    const Nested nested(*this);
    if (const auto sign =
            accept_any({{"-", "_operator.neg"}, {"+", "_operator.pos"}})) {
      return apply(sign, {unary()});
    }
    auto base = atom();
    return accept("**")
               ? apply(number_operation("_operator.pow"), {base, unary()})
               : base;
  }

  static Expression apply(const Operation& operation,
                          const std::vector<Expression>& operands) {
    return [=](const Values& inputs) {
      Values stack;
      for (const auto& operand : operands) {
        stack.push_back(operand(inputs));
      }
      return call(operation, std::move(stack));
    };
  }

  static Expression constant(const c10::IValue& value) {
    return [=](const Values& /*inputs*/) { return value; };
  }

  Expression atom() {
    if (accept("(")) {
      auto inner = choice();
      expect(")");
      return inner;
    }
    if (at_ < text_.size() && is_in_name(text_[at_]) &&
        std::isdigit(static_cast<unsigned char>(text_[at_])) == 0) {
      return named();
    }
    const auto end = text_.find_first_not_of("0123456789", at_);
    return end < text_.size() &&
                   std::string(".eE").find(text_[end]) != std::string::npos
               ? constant(number<double>())
               : constant(number<int64_t>());
  }

  template <typename Number>
  Number number() {
    Number result = 0;
    const auto* begin = text_.data() + at_;
    const auto [end, error] =
        std::from_chars(begin, text_.data() + text_.size(), result);
    if (error != std::errc()) {
      refuse("a name, or a number of 64 bits");
    }
    at_ += end - begin;
    accept("");
    return result;
  }

  std::string name() {
    const auto begin = at_;
    while (at_ < text_.size() && is_in_name(text_[at_])) {
      ++at_;
    }
    if (at_ == begin) {
      refuse("a name");
    }
    const auto result = text_.substr(begin, at_ - begin);
    accept("");
    return result;
  }

  /// A string in quotes, as Python's repr() writes it.
  std::string quoted() {
    static const std::map<char, char> escapes{
        {'n', '\n'}, {'r', '\r'}, {'t', '\t'}};
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') {
      refuse("a string");
    }
    std::string result;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] != '\\') {
        result += text_[at_];
        continue;
      }
      const char escaped = ++at_ < text_.size() ? text_[at_] : ' ';
      const auto found = escapes.find(escaped);
      if (found == escapes.end() && is_in_name(escaped)) {
        refuse("no such escape sequence");
      }
      result += found == escapes.end() ? escaped : found->second;
    }
    expect({quote});
    return result;
  }

  Expression named() {
    auto full = name();
    if (full == "math" || full == "torch") {
      expect(".");
      full += "." + name();
    }
    if (full == "math.inf") {
      return constant(std::numeric_limits<double>::infinity());
    }
    if (full == "True" || full == "False") {
      return constant(full == "True");
    }
    if (full == "Symbol" && accept("(")) {
      full = quoted();
      while (accept(",")) {  // Symbol('s0', integer=True)
        name();
        expect("=");
        name();
      }
      expect(")");
      return found({full});
    }
    return accept("(") ? function(full) : input({full});
  }

  Expression function(const std::string& name) {
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
        {"CleanDiv", "_operator.floordiv"},
        {"Integer", "_operator.pos"}};
    std::vector<Expression> operands;
    do {
      operands.push_back(choice());
    } while (accept(","));
    expect(")");
    const auto other = others.find(name);
    const bool is_unary = other == others.end() || name == "Integer";
    const bool rounds = name == "round" && operands.size() == 2;
    const auto operation =
        number_operation(rounds                  ? "round, decimals"
                         : other == others.end() ? name
                                                 : other->second);
    if (!operation || (is_unary && !rounds && operands.size() != 1)) {
      refuse("another function than " + name + " before this");
    }
    if (operands.size() < 3) {
      return apply(operation, operands);
    }
    return [=](const Values& inputs) {  // max(x, y, z)
      auto result = operands[0](inputs);
      for (size_t i = 1; i < operands.size(); ++i) {
        result = call(operation, {result, operands[i](inputs)});
      }
      return result;
    };
  }

  Expression found(const std::vector<std::string>& path) const {
    auto result = find_(path);
    if (!result) {
      refuse("the name of an input before this");
    }
    return result;
  }

  /// L['x'][0]['key'].size()[1], or a symbol.
  Expression input(std::vector<std::string> path) {
    for (;;) {
      if (accept("[")) {
        const bool is_index =
            std::isdigit(static_cast<unsigned char>(text_[at_])) != 0;
        path.push_back(is_index ? std::to_string(number<int64_t>()) : quoted());
        expect("]");
      } else if (accept(".")) {
        path.push_back(name());
      } else {
        return found(path);
      }
      if (accept("(")) {
        expect(")");
        const auto property = path.back();
        path.pop_back();
        return tensor_property(found(path), property);
      }
    }
  }

  Expression tensor_property(const Expression& tensor,
                             const std::string& property) {
    if (property == "storage_offset") {
      return [=](const Values& inputs) -> c10::IValue {
        return tensor(inputs).toTensor().storage_offset();
      };
    }
    if (property != "size" && property != "stride") {
      refuse("size(), stride() or storage_offset() before this");
    }
    expect("[");
    const auto dimension = number<int64_t>();
    expect("]");
    return
        [=, is_size = property == "size"](const Values& inputs) -> c10::IValue {
          const auto of = tensor(inputs).toTensor();
          return is_size ? of.size(dimension) : of.stride(dimension);
        };
  }

  const std::string& text_;
  const FindName& find_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Expression parse_expression(const std::string& text, const FindName& find) {
  return Parser(text, find).parse();
}

}  // namespace ddp::detail
