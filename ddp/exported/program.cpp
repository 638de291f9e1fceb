#include "ddp/exported/program.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

#include <c10/util/StringUtil.h>

namespace ddp::detail {
namespace {

/// Returns the name of the symbol in "Symbol('s0', integer=True)", or "" for
/// other expressions, such as 2*s0.
std::string symbol_of(const std::string& expression) {
  const std::string start = "Symbol('";
  if (expression.compare(0, start.size(), start) != 0) {
    return "";
  }
  const auto end = expression.find('\'', start.size());
  return expression.substr(start.size(), end - start.size());
}

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isBool() || value.isDouble();
}

/// Returns the size of a leaf that has been checked.
int64_t size_of(const Values& leaves, const std::pair<size_t, size_t>& at) {
  return leaves[at.first].toTensor().size(static_cast<int64_t>(at.second));
}

/// Checks a leaf of the arguments. The leaves before it have been checked.
void check_leaf(const std::vector<UserInput>& users,
                const Values& leaves,
                size_t at) {
  const auto& [name, sizes, fixed] = users[at];
  const auto& value = leaves[at];
  const auto expect = [&](bool is_so, const auto&... expected) {
    TORCH_CHECK(is_so,
                "Expected input ",
                users[at].name,
                " to be ",
                expected...,
                ", as in the export, but got ",
                is_number(value) ? c10::str(value) : "a " + value.tagKind());
  };
  if (fixed) {
    return expect(*fixed == value, *fixed);
  }
  if (!sizes) {
    return expect(is_number(value), "a number");
  }
  expect(value.isTensor() && value.toTensor().defined() &&
             value.toTensor().sizes().size() == sizes->size(),
         "a tensor of ",
         sizes->size(),
         " dimensions");
  for (size_t i = 0; i < sizes->size(); ++i) {
    const auto& [least, most, same_as] = (*sizes)[i];
    const int64_t size = size_of(leaves, {at, i});
    TORCH_CHECK(size >= least && size <= most,
                "Expected dimension ",
                i,
                " of input ",
                name,
                " to be ",
                least == most       ? c10::str(least)
                : most == INT64_MAX ? c10::str("at least ", least)
                                    : c10::str("from ", least, " to ", most),
                ", as in the export, but got ",
                size,
                "; export it as dynamic (dynamic_shapes)");
    TORCH_CHECK(!same_as || size == size_of(leaves, *same_as),
                "Expected dimension ",
                i,
                " of input ",
                name,
                " to be ",
                size_of(leaves, *same_as),
                ", as dimension ",
                same_as->second,
                " of input ",
                users[same_as->first].name,
                ", but got ",
                size);
  }
}

/// Returns the range of a symbol or an expression. torch.export writes 2 for a
/// dimension of any size.
std::pair<int64_t, int64_t> read_range(const JsonValue& range) {
  const auto least = range.find("min_val");
  const auto most = range.find("max_val");
  return {least && least->integer() > 2 ? least->integer() : 0,
          most ? most->integer() : INT64_MAX};
}

/// What the sizes of inputs say of symbols.
struct Symbols {
  std::map<std::string, std::pair<size_t, size_t>> firsts;  ///< dimensions
  std::map<std::string, std::string> texts;  ///< Python for each of `firsts`
  /// Python for other sizes and numbers, and their expressions.
  std::vector<std::pair<std::string, std::string>> derived;
};

/// Reads the sizes of the next user's tensor.
std::vector<Dimension> read_sizes(const JsonValue& sizes,
                                  const JsonValue& ranges,
                                  size_t input,
                                  const std::string& name,
                                  Symbols& symbols) {
  std::vector<Dimension> dimensions;
  for (const auto& size : sizes.elements()) {
    Dimension dimension;
    if (const auto number = size.find("as_int")) {
      dimension.least = dimension.most = number->integer();
    } else {
      const auto& expression = size.at("as_expr").at("expr_str").text();
      const auto symbol = symbol_of(expression);
      const auto text =
          name + ".size()[" + std::to_string(dimensions.size()) + "]";
      if (const auto range = ranges.find(symbol)) {
        std::tie(dimension.least, dimension.most) = read_range(*range);
        const auto [first, is_new] =
            symbols.firsts.emplace(symbol, std::pair(input, dimensions.size()));
        if (is_new) {
          symbols.texts[symbol] = text;
        } else {
          dimension.same_as = first->second;
        }
      } else {
        symbols.derived.emplace_back(text, expression);
      }
    }
    dimensions.push_back(dimension);
  }
  return dimensions;
}

void read_inputs(const JsonValue& module,
                 const JsonValue& ranges,
                 std::vector<StateInput>& state,
                 std::vector<UserInput>& users,
                 Symbols& symbols) {
  const auto values = module.at("graph").at("tensor_values");
  const auto add_user = [&](const JsonValue& argument) {
    const auto [kind, value] = argument.only_member();
    UserInput input;
    const auto read = read_value(kind, value);
    input.name = read.name ? read.name->text() : std::to_string(users.size());
    input.fixed = read.constant;
    if (kind == "as_tensor") {
      input.sizes = read_sizes(values.at(input.name).at("sizes"),
                               ranges,
                               users.size(),
                               input.name,
                               symbols);
    } else if (kind == "as_sym_int" && read.name) {
      const auto& expression = module.at("graph")
                                   .at("sym_int_values")
                                   .at(input.name)
                                   .at("as_expr")
                                   .at("expr_str")
                                   .text();
      // Its symbol may be that of sizes which follow.
      symbols.derived.emplace(symbol_of(expression).empty()
                                  ? symbols.derived.end()
                                  : symbols.derived.begin(),
                              input.name,
                              expression);
    } else if (!read.name && !read.constant) {
      argument.refuse("a tensor, a number, a string or None");
    }
    users.push_back(std::move(input));
  };
  using Kind = StateInput::Kind;
  static const std::map<std::string, Kind> kinds{
      {"parameter", Kind::parameter},
      {"buffer", Kind::buffer},
      {"tensor_constant", Kind::constant}};
  for (const auto& spec : module.at("signature").at("input_specs").elements()) {
    const auto [kind, value] = spec.only_member();
    if (const auto found = kinds.find(kind); found != kinds.end()) {
      const auto& name = value.at(kind + "_name").text();
      state.push_back({found->second,
                       name,
                       name.find("num_batches_tracked") != std::string::npos});
    } else if (kind == "user_input") {
      add_user(value.at("arg"));
    } else if (kind == "constant_input") {
      add_user(value.at("value"));
    } else {
      spec.refuse(
          "a parameter, a buffer, a constant tensor or an argument; objects of "
          "classes are not supported");
    }
  }
}

std::string shortened(const std::string& text) {
  constexpr size_t kMost = 300;
  return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

/// Returns the leaf of arguments at {"x", "0", "key"}, for x[0]['key'].
/// @param arguments  forward's arguments: a dict
std::optional<size_t> find_leaf(const TreeSpec& arguments,
                                const std::vector<UserInput>& users,
                                const std::vector<std::string>& path) {
  const auto* spec = &arguments;
  size_t leaf = 0;
  std::string name;  // that torch.export gives to an input at this place
  for (const auto& key : path) {
    name += (name.empty() ? "" : "_") + key;
    const bool is_index = key.find_first_not_of("0123456789") == key.npos;
    size_t at = leaf;
    size_t child = 0;
    const auto is_found = [&] {
      const auto& found = spec->children[child];
      return spec->kind == TreeSpec::Kind::dict ? spec->keys[child] == key
             : is_index                         ? std::to_string(child) == key
             : at >= users.size()               ? false  // a named tuple:
             : found.kind == TreeSpec::Kind::leaf
                 ? users[at].name == name
                 : users[at].name.rfind(name + "_", 0) == 0;
    };
    while (child < spec->children.size() && !is_found()) {
      at += spec->children[child++].size;
    }
    if (child == spec->children.size()) {
      return std::nullopt;
    }
    spec = &spec->children[child];
    leaf = at;
  }
  return spec->kind == TreeSpec::Kind::leaf && leaf < users.size()
             ? std::optional(leaf)
             : std::nullopt;
}

/// Reads the conditions on the inputs of a program.
class GuardReader {
 public:
  GuardReader(const std::vector<UserInput>& users,
              TreeSpec arguments,
              std::map<std::string, std::string> symbols)
      : users_(users),
        arguments_(std::move(arguments)),
        symbols_(std::move(symbols)) {}

  /// A size or a number is an expression of symbols, such as 2*s0. One that no
  /// other input has follows from it: s0 is size // 2.
  void add_derived(const std::string& text, const std::string& expression) {
    std::set<std::string> names;
    int64_t number = 0;
    const auto parsed = parse(
        expression, [&](const std::vector<std::string>& path) -> Expression {
          names.insert(path[0]);
          return [&](const Values& /*inputs*/) { return number; };
        });
    const auto value_at = [&](int64_t at) {
      number = at;
      return parsed({}).toInt();
    };
    const bool is_single = parsed && names.size() == 1;
    const auto offset = is_single ? value_at(0) : 0;
    const auto factor = is_single ? value_at(1) - offset : 0;
    const bool is_known = is_single && symbols_.count(*names.begin()) > 0;
    if (factor == 0 || (factor < 0 && !is_known) ||
        value_at(2) != 2 * factor + offset) {
      return add(text + " == " + expression);  // of several symbols
    }
    const auto sum = [](const std::string& first, int64_t number) {
      return number == 0  ? first
             : number > 0 ? first + " + " + std::to_string(number)
                          : first + " - " + std::to_string(-number);
    };
    const auto times =
        factor == 1 ? std::string() : std::to_string(factor) + "*";
    auto& symbol = symbols_[*names.begin()];
    if (!is_known) {
      symbol = offset == 0 ? text : "(" + sum(text, -offset) + ")";
      if (factor > 1) {
        symbol = "(" + symbol + " // " + std::to_string(factor) + ")";
      }
    }
    add(text + " == " + sum(times + symbol, offset));
  }

  /// The range of an expression, unless a value of the graph is in it.
  void add_range(const std::string& expression,
                 const std::pair<int64_t, int64_t>& range) {
    const auto symbol = symbols_.find(expression);
    const auto& text = symbol == symbols_.end() ? expression : symbol->second;
    bool is_of_inputs = true;
    try {
      parse_expression(text, [&](const std::vector<std::string>& path) {
        is_of_inputs = is_of_inputs && find(path).has_value();
        return [](const Values& /*inputs*/) { return 0; };
      });
    } catch (const c10::Error&) {
      return;
    }
    if (is_of_inputs && range.first > 0) {
      add(text + " >= " + std::to_string(range.first));
    }
    if (is_of_inputs && range.second < INT64_MAX) {
      add(text + " <= " + std::to_string(range.second));
    }
  }

  void add(const std::string& text) {
    Guard guard;
    guard.text = text;
    guard.holds = parse(
        text, [&](const auto& path) { return value_of(path, guard.users); });
    guards_.push_back(std::move(guard));
  }

  std::vector<Guard> take() {
    TORCH_CHECK(unreadable_.empty(),
                "it has conditions on its inputs (guards) that this library "
                "cannot read; ExportedModuleOptions::check_guards(false) runs "
                "it without a check of any:\n  ",
                c10::Join("\n  ", unreadable_));
    return std::move(guards_);
  }

 private:
  /// Returns null for a text that cannot be read.
  Expression parse(const std::string& text, const FindName& find) {
    try {
      return parse_expression(text, find);
    } catch (const c10::Error& error) {
      unreadable_.push_back(shortened(text) + ": " +
                            error.what_without_backtrace());
      return nullptr;
    }
  }

  Expression value_of(const std::vector<std::string>& path,
                      std::set<size_t>& users) const {
    const auto symbol = symbols_.find(path[0]);
    if (path.size() == 1 && symbol != symbols_.end()) {
      return parse_expression(symbol->second, [&](const auto& inner) {
        return value_of(inner, users);
      });
    }
    const auto user = find(path);
    if (!user) {
      return nullptr;
    }
    users.insert(*user);
    return [at = *user](const Values& inputs) { return inputs.at(at); };
  }

  /// Returns the input of a path: L['x'], or x of the graph.
  std::optional<size_t> find(const std::vector<std::string>& path) const {
    if (path[0] != "L") {
      const auto found =
          std::find_if(users_.begin(), users_.end(), [&](const auto& user) {
            return path.size() == 1 && user.name == path[0];
          });
      return found == users_.end()
                 ? std::nullopt
                 : std::optional<size_t>(found - users_.begin());
    }
    std::vector<std::string> keys(path.begin() + 1, path.end());
    const auto& names = arguments_.keys;
    if (keys.size() > 1 &&
        std::find(names.begin(), names.end(), keys[0]) == names.end()) {
      // forward(*args, **kwargs): the names are args_0 and that of a key.
      const auto numbered = keys[0] + "_" + keys[1];
      keys.erase(keys.begin());
      if (std::find(names.begin(), names.end(), numbered) != names.end()) {
        keys[0] = numbered;
      }
    }
    return find_leaf(arguments_, users_, keys);
  }

  const std::vector<UserInput>& users_;
  const TreeSpec arguments_;
  std::map<std::string, std::string> symbols_;  ///< Python for each
  std::vector<Guard> guards_;
  std::vector<std::string> unreadable_;
};

/// Returns forward's arguments, by their names.
TreeSpec named_arguments(const JsonValue& signature,
                         const TreeSpec& arguments,
                         const TreeSpec& kwargs) {
  TreeSpec all;
  all.kind = TreeSpec::Kind::dict;
  all.children = arguments.children;
  all.children.insert(
      all.children.end(), kwargs.children.begin(), kwargs.children.end());
  const auto names = signature.find("forward_arg_names");
  for (size_t i = 0; i < all.children.size(); ++i) {
    all.keys.push_back("arg_" + std::to_string(i));
  }
  size_t next = 0;
  for (const auto& name :
       names ? names->elements() : std::vector<JsonValue>()) {
    if (next < all.keys.size()) {
      all.keys[next++] = name.text();
    }
  }
  return all;
}

/// Checks a guard. The leaves have been checked.
void check_guard(const std::vector<UserInput>& users,
                 const Guard& guard,
                 const Values& leaves) {
  std::string problem;
  try {
    if (guard.holds(leaves).toBool()) {
      return;
    }
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  }
  std::ostringstream got;
  for (const auto user : guard.users) {
    const auto& value = leaves[user];
    got << (got.tellp() > 0 ? ", " : "") << users[user].name;
    if (value.isTensor()) {
      got << " of sizes " << value.toTensor().sizes();
    } else {
      got << " = " << value;
    }
  }
  TORCH_CHECK(false,
              "Expected inputs with ",
              shortened(guard.text),
              ", as in the export, but got ",
              got.str(),
              problem.empty() ? "" : ": " + problem,
              "; other inputs need a program of their own");
}

}  // namespace

ExportedProgram::ExportedProgram(
    const JsonValue& file,
    const std::map<std::string, ExportedTensor>& tensors,
    bool check_guards) {
  const auto module = file.at("graph_module");
  const auto ranges = file.at("range_constraints");
  Symbols symbols;
  read_inputs(module, ranges, state, users, symbols);
  std::optional<c10::Device> device;  // of the exported parameters
  for (const auto& input : state) {
    const auto found = tensors.find(input.name);
    TORCH_CHECK(found != tensors.end(),
                "it has no tensor \"",
                input.name,
                "\", which its program needs");
    if (input.kind == StateInput::Kind::parameter && !device) {
      device = found->second.device;
    }
  }
  for (const auto& spec :
       module.at("signature").at("output_specs").elements()) {
    if (spec.only_member().first != "user_output") {
      spec.refuse(
          "a result of forward; export without run_decompositions(), after "
          "which a program returns new values of buffers");
    }
  }
  const auto calls = module.at("module_call_graph").elements();
  if (calls.empty()) {
    module.refuse("a module with a call");
  }
  const auto signature = calls[0].at("signature");
  auto inputs = parse_tree_spec(signature.at("in_spec"));
  using TreeKind = TreeSpec::Kind;
  if (inputs.kind != TreeKind::tuple || inputs.children.size() != 2 ||
      inputs.children[0].kind != TreeKind::tuple ||
      inputs.children[1].kind != TreeKind::dict) {
    signature.refuse("a signature with arguments and keyword arguments");
  }
  arguments = std::move(inputs.children[0]);
  kwargs = std::move(inputs.children[1]);
  results = parse_tree_spec(signature.at("out_spec"));
  std::set<std::string> missing;
  graph = read_graph(module.at("graph"), device, missing);
  TORCH_CHECK(missing.empty(),
              "it needs what neither this LibTorch nor the libraries of "
              "ExportedModuleOptions have:\n  ",
              c10::Join("\n  ", missing));
  TORCH_CHECK(graph->inputs.size() == state.size() + users.size() &&
                  graph->outputs.size() == results.size &&
                  users.size() == arguments.size + kwargs.size,
              "its program does not match its signature");
  if (!check_guards) {
    return;
  }
  GuardReader reader(users,
                     named_arguments(signature, arguments, kwargs),
                     std::move(symbols.texts));
  for (const auto& [text, expression] : symbols.derived) {
    reader.add_derived(text, expression);
  }
  for (const auto& [expression, range] : ranges.members()) {
    if (symbols.firsts.count(expression) == 0) {
      reader.add_range(expression, read_range(range));
    }
  }
  if (const auto codes = file.find("guards_code")) {
    for (const auto& code : codes->elements()) {
      reader.add(code.text());
    }
  }
  guards = reader.take();
}

Values ExportedProgram::leaves_of(
    Values inputs,
    const std::unordered_map<std::string, c10::IValue>& given) const {
  c10::impl::GenericDict named(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : given) {
    named.insert(name, value);
  }
  size_t next = arguments.size;
  for (size_t i = 0; i < kwargs.keys.size(); ++i) {
    if (next < users.size() && users[next].fixed) {
      named.insert(kwargs.keys[i], *users[next].fixed);  // unless it is given
    }
    next += kwargs.children[i].size;
  }
  Values leaves;
  flatten_tree(arguments,
               c10::ivalue::Tuple::create(std::move(inputs)),
               "arguments",
               leaves);
  flatten_tree(kwargs, named, "keyword arguments", leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    check_leaf(users, leaves, i);
  }
  for (const auto& guard : guards) {
    check_guard(users, guard, leaves);
  }
  return leaves;
}

}  // namespace ddp::detail
