#include "ddp/exported/program.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <c10/util/StringUtil.h>

namespace ddp::detail {
namespace {

constexpr int64_t kAnySize = -1;

/// Replaces the symbols of sympy in a text: Symbol('s0', integer=True).
/// @param replace  of the name of a symbol.
template <typename Replace>
std::string replace_symbols(const std::string& text, const Replace& replace) {
  const std::string start = "Symbol('";
  std::string result;
  size_t done = 0;
  for (;;) {
    const auto begin = text.find(start, done);
    const auto end = text.find(')', begin);
    const auto name = begin + start.size();
    if (begin == text.npos || end == text.npos) {
      return result + text.substr(done);
    }
    result += text.substr(done, begin - done) +
              replace(text.substr(name, text.find('\'', name) - name));
    done = end + 1;
  }
}

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isBool() || value.isDouble();
}

/// Checks a leaf of the arguments.
void check_leaf(const UserInput& user, const c10::IValue& value) {
  const auto expect = [&](bool is_so, const auto&... expected) {
    TORCH_CHECK(is_so,
                "Expected input ",
                user.name,
                " to be ",
                expected...,
                ", as in the export, but got ",
                is_number(value) ? c10::str(value) : "a " + value.tagKind());
  };
  if (user.fixed) {
    return expect(*user.fixed == value, *user.fixed);
  }
  if (!user.sizes) {
    return expect(is_number(value), "a number");
  }
  const auto& sizes = *user.sizes;
  expect(value.isTensor() && value.toTensor().defined() &&
             value.toTensor().sizes().size() == sizes.size(),
         "a tensor of ",
         sizes.size(),
         " dimensions");
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto size = value.toTensor().sizes()[i];
    TORCH_CHECK(sizes[i] == kAnySize || size == sizes[i],
                "Expected dimension ",
                i,
                " of input ",
                user.name,
                " to be ",
                sizes[i],
                ", as in the export, but got ",
                size,
                "; export it as dynamic (dynamic_shapes)");
  }
}

/// Sizes and numbers as Python, and their expressions of symbols.
using Symbolic = std::vector<std::pair<std::string, std::string>>;

void read_inputs(const JsonValue& module,
                 std::vector<StateInput>& state,
                 std::vector<UserInput>& users,
                 Symbolic& symbolic) {
  const auto graph = module.at("graph");
  const auto add_symbolic = [&](const std::string& text,
                                const JsonValue& value) {
    symbolic.emplace_back(text, value.at("as_expr").at("expr_str").text());
  };
  const auto add_user = [&](const JsonValue& argument) {
    const auto [kind, value] = argument.only_member();
    UserInput input;
    const auto read = read_value(kind, value);
    input.name = read.name ? read.name->text() : std::to_string(users.size());
    input.fixed = read.constant;
    if (kind == "as_tensor") {
      const auto meta = graph.at("tensor_values").at(input.name);
      auto& sizes = input.sizes.emplace();
      for (const auto& size : meta.at("sizes").elements()) {
        const auto number = size.find("as_int");
        if (!number) {
          add_symbolic(c10::str(input.name, ".size()[", sizes.size(), "]"),
                       size);
        }
        sizes.push_back(number ? number->integer() : kAnySize);
      }
    } else if (kind == "as_sym_int" && read.name) {
      add_symbolic(input.name, graph.at("sym_int_values").at(input.name));
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

using Path = std::vector<std::string>;  // {"x", "0", "key"} for x[0]['key']

void add_paths(const TreeSpec& spec,
               const Path& path,
               std::vector<Path>& leaves) {
  if (spec.kind == TreeSpec::Kind::leaf) {
    leaves.push_back(path);
  }
  for (size_t i = 0; i < spec.children.size(); ++i) {
    auto inner = path;
    inner.push_back(spec.keys.empty() ? std::to_string(i) : spec.keys[i]);
    add_paths(spec.children[i], inner, leaves);
  }
}

/// Reads the conditions on the inputs of a program.
class GuardReader {
 public:
  /// @param paths  of `users`.
  GuardReader(const std::vector<UserInput>& users, std::vector<Path> paths)
      : users_(users), paths_(std::move(paths)) {}

  /// Reads the sizes and numbers, and the ranges of their symbols.
  void add_symbolic(const Symbolic& symbolic, const JsonValue& ranges) {
    for (const auto& [text, expression] : symbolic) {
      try {
        solve(text, expression);
      } catch (const c10::Error&) {  // add() reports it
      }
    }
    for (const auto& [text, expression] : symbolic) {
      const auto other = replace_symbols(expression, [&](const auto& symbol) {
        const auto found = symbols_.find(symbol);
        return found == symbols_.end() ? "symbol." + symbol : found->second;
      });
      if (other != text) {
        add(text + " == " + other);
      }
    }
    for (const auto& [expression, range] : ranges.members()) {
      const auto symbol = symbols_.find(expression);  // else 2*s0
      const auto& text = symbol == symbols_.end() ? expression : symbol->second;
      const auto add_limit = [&text, this](const char* sign, int64_t limit) {
        try {
          read(c10::str(text, sign, limit));
        } catch (const c10::Error&) {  // of a number that the graph computes
        }
      };
      const auto least = range.find("min_val");
      const auto most = range.find("max_val");
      if (least && least->integer() > 2) {  // 2: any size
        add_limit(" >= ", least->integer());
      }
      if (most) {
        add_limit(" <= ", most->integer());
      }
    }
  }

  void add(const std::string& text) {
    try {
      read(text);
    } catch (const c10::Error& error) {
      unreadable.push_back(shortened(text) + ": " +
                           error.what_without_backtrace());
    }
  }

  std::vector<Guard> guards;
  std::vector<std::string> unreadable;  ///< texts, and the reasons

 private:
  void read(const std::string& text) {
    Guard guard;
    guard.text = text;
    guard.holds = parse_expression(
        text, [&](const auto& path) { return value_of(path, guard.users); });
    guards.push_back(std::move(guard));
  }

  /// A symbol follows from the first size that is a multiple of it: of
  /// 2*s0 + 1, s0 is (size - 1) // 2.
  void solve(const std::string& text, const std::string& expression) {
    std::set<std::string> names;
    const auto value_at = [&](int64_t number) {
      const auto at = replace_symbols(expression, [&](const auto& symbol) {
        names.insert(symbol);
        return std::to_string(number);
      });
      return parse_expression(at, [](const Path&) { return nullptr; })({})
          .toInt();
    };
    const auto offset = value_at(0);
    const auto factor = value_at(1) - offset;
    if (names.size() == 1 && factor > 0 && value_at(2) == 2 * factor + offset) {
      symbols_.emplace(
          *names.begin(),
          factor == 1 && offset == 0
              ? text
              : c10::str("((", text, " - ", offset, ") // ", factor, ")"));
    }
  }

  Expression value_of(const Path& path, std::set<size_t>& users) const {
    const auto user = find(path);
    if (user == users_.size()) {
      const auto symbol =
          path.size() == 1 ? symbols_.find(path[0]) : symbols_.end();
      return symbol == symbols_.end()
                 ? nullptr
                 : parse_expression(symbol->second, [&](const Path& of) {
                     return value_of(of, users);
                   });
    }
    users.insert(user);
    return [=](const Values& inputs) { return inputs.at(user); };
  }

  /// Returns the number of an input of this name in the graph, or of users.
  size_t find(const std::string& name) const {
    size_t at = 0;
    while (at < users_.size() && users_[at].name != name) {
      ++at;
    }
    return at;
  }

  /// Returns the number of the input L['x'], or x of the graph.
  size_t find(Path path) const {
    if (path[0] != "L") {
      return path.size() == 1 ? find(path[0]) : users_.size();
    }
    path.erase(path.begin());
    const auto found = std::find(paths_.begin(), paths_.end(), path);
    if (found != paths_.end()) {
      return found - paths_.begin();
    }
    // In *args, **kwargs or a named tuple. torch.export joins the keys, and
    // adds _1 to a name that it has used.
    auto name = c10::Join("_", path);
    for (char& one : name) {
      const auto byte = static_cast<unsigned char>(one);
      one =
          std::isalnum(byte) != 0 ? static_cast<char>(std::tolower(byte)) : '_';
    }
    return find(name + "_1") < users_.size() ? users_.size() : find(name);
  }

  const std::vector<UserInput>& users_;
  const std::vector<Path> paths_;
  std::map<std::string, std::string> symbols_;  ///< Python for each
};

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
  std::string got;
  for (const auto user : guard.users) {
    const auto& value = leaves[user];
    got += (got.empty() ? "" : ", ") + users[user].name +
           (value.isTensor() ? c10::str(" of sizes ", value.toTensor().sizes())
                             : c10::str(" = ", value));
  }
  TORCH_CHECK(false,
              "Expected inputs with ",
              shortened(guard.text),
              ", as in the export, but got ",
              got,
              problem.empty() ? "" : ": " + problem,
              "; other inputs need a program of their own");
}

}  // namespace

ExportedProgram::ExportedProgram(
    const JsonValue& file,
    const std::map<std::string, ExportedTensor>& tensors,
    bool check_guards) {
  const auto module = file.at("graph_module");
  Symbolic symbolic;
  read_inputs(module, state, users, symbolic);
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
  auto named = arguments;
  if (const auto names = signature.find("forward_arg_names")) {
    for (const auto& name : names->elements()) {
      named.keys.push_back(name.text());
    }
  }
  named.keys.resize(named.children.size());
  std::vector<Path> paths;
  add_paths(named, {}, paths);
  add_paths(kwargs, {}, paths);
  GuardReader reader(users, std::move(paths));
  reader.add_symbolic(symbolic, file.at("range_constraints"));
  const auto codes = file.find("guards_code");
  if (codes && check_guards) {
    for (const auto& code : codes->elements()) {
      reader.add(code.text());
    }
  }
  TORCH_CHECK(reader.unreadable.empty() || !check_guards,
              "it has conditions on its inputs (guards) that this library "
              "cannot read; ExportedModuleOptions::check_guards(false) runs "
              "it without a check of them:\n  ",
              c10::Join("\n  ", reader.unreadable));
  guards = std::move(reader.guards);
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
    check_leaf(users[i], leaves[i]);
  }
  for (const auto& guard : guards) {
    check_guard(users, guard, leaves);
  }
  return leaves;
}

}  // namespace ddp::detail
