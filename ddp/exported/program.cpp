#include "ddp/exported/program.h"

#include <set>

#include <c10/util/StringUtil.h>

namespace ddp::detail {
namespace {

/// Returns the name of the symbol in "Symbol('s0', integer=True)", or "" for
/// other expressions, such as 2*s0, which follow from their symbols.
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
                least == most ? c10::str(least)
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

/// Reads the sizes of the next user's tensor.
/// @param firsts  the first dimension of each symbol
std::vector<Dimension> read_sizes(
    const JsonValue& sizes,
    const JsonValue& ranges,
    size_t input,
    std::map<std::string, std::pair<size_t, size_t>>& firsts) {
  std::vector<Dimension> dimensions;
  for (const auto& size : sizes.elements()) {
    Dimension dimension;
    if (const auto number = size.find("as_int")) {
      dimension.least = dimension.most = number->integer();
    } else {
      const auto symbol = symbol_of(size.at("as_expr").at("expr_str").text());
      if (const auto range = ranges.find(symbol)) {
        const auto least = range->find("min_val");
        const auto most = range->find("max_val");
        // torch.export writes 2 for a dimension of any size.
        dimension.least = least && least->integer() > 2 ? least->integer() : 0;
        dimension.most = most ? most->integer() : INT64_MAX;
        const auto [first, is_new] =
            firsts.emplace(symbol, std::pair(input, dimensions.size()));
        if (!is_new) {
          dimension.same_as = first->second;
        }
      }
    }
    dimensions.push_back(dimension);
  }
  return dimensions;
}

void read_inputs(const JsonValue& module,
                 const JsonValue& ranges,
                 std::vector<StateInput>& state,
                 std::vector<UserInput>& users) {
  std::map<std::string, std::pair<size_t, size_t>> firsts;
  const auto values = module.at("graph").at("tensor_values");
  const auto add_user = [&](const JsonValue& argument) {
    const auto [kind, value] = argument.only_member();
    UserInput input;
    const auto read = read_value(kind, value);
    input.name = read.name ? read.name->text() : std::to_string(users.size());
    input.fixed = read.constant;
    if (kind == "as_tensor") {
      input.sizes = read_sizes(
          values.at(input.name).at("sizes"), ranges, users.size(), firsts);
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

}  // namespace

ExportedProgram::ExportedProgram(
    const JsonValue& file,
    const std::map<std::string, ExportedTensor>& tensors) {
  const auto module = file.at("graph_module");
  read_inputs(module, file.at("range_constraints"), state, users);
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
  return leaves;
}

}  // namespace ddp::detail
