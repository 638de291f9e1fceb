#include "ddp/exported/exported_module.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <set>

#include <ATen/core/grad_mode.h>

#include "ddp/exported/archive.h"
#include "ddp/exported/program.h"
#include "ddp/exported/tree_spec.h"

namespace ddp {
namespace detail {

/// A dimension of an input: of one size, or a symbol with a range.
struct Dimension {
  int64_t size = 0;
  std::string symbol;  ///< "" for a fixed size or an unchecked expression
  bool is_checked = true;
};

struct ProgramInput {
  enum class Kind { parameter, buffer, constant, user };
  Kind kind = Kind::user;
  std::string name;
  std::optional<std::vector<Dimension>> sizes;  ///< of a user's tensor
  std::optional<c10::IValue> fixed;  ///< the only value of a user's number
};

struct Range {
  int64_t least = 0;
  int64_t most = INT64_MAX;
};

struct ExportedProgram {
  std::shared_ptr<ExportedGraph> graph;
  std::vector<ProgramInput> inputs;
  std::map<std::string, Range> ranges;  ///< of symbols
  TreeSpec arguments;                   ///< a tuple
  TreeSpec kwargs;                      ///< a dict
  TreeSpec results;
  std::optional<c10::Device> device;  ///< of the exported parameters
};

}  // namespace detail

namespace {

using detail::Dimension;
using detail::ExportedProgram;
using detail::JsonValue;
using detail::ProgramInput;
using Kind = ProgramInput::Kind;

c10::IValue fixed_value(const JsonValue& argument) {
  const auto [kind, value] = argument.only_member();
  if (kind == "as_none") {
    return {};
  }
  if (kind == "as_int") {
    return value.integer();
  }
  if (kind == "as_float") {
    return value.number();
  }
  if (kind == "as_bool") {
    return value.boolean();
  }
  if (kind == "as_string") {
    return value.text();
  }
  argument.refuse("a tensor, a number, a string or None");
}

/// Returns the name of the symbol in "Symbol('s0', integer=True)"; other
/// expressions as they are.
std::string symbol_of(const std::string& expression) {
  const std::string start = "Symbol('";
  const auto end = expression.find('\'', start.size());
  const bool is_symbol = expression.compare(0, start.size(), start) == 0 &&
                         end != std::string::npos &&
                         expression.find('(', end) == std::string::npos;
  return is_symbol ? expression.substr(start.size(), end - start.size())
                   : expression;
}

std::vector<Dimension> dimensions_of(const JsonValue& meta,
                                     const ExportedProgram& program) {
  std::vector<Dimension> dimensions;
  for (const auto& size : meta.at("sizes").elements()) {
    Dimension dimension;
    if (const auto number = size.find("as_int")) {
      dimension.size = number->integer();
    } else {
      dimension.symbol = symbol_of(size.at("as_expr").at("expr_str").text());
      // An expression such as 2*s0 follows from its symbols.
      dimension.is_checked = program.ranges.count(dimension.symbol) > 0;
    }
    dimensions.push_back(std::move(dimension));
  }
  return dimensions;
}

ProgramInput user_input(const JsonValue& argument,
                        const JsonValue& graph,
                        const ExportedProgram& program) {
  ProgramInput input;
  const auto [kind, value] = argument.only_member();
  if (kind == "as_tensor") {
    input.name = value.at("name").text();
    input.sizes =
        dimensions_of(graph.at("tensor_values").at(input.name), program);
  } else if (value.is_object() && value.find("as_name")) {
    input.name = value.at("as_name").text();
  } else {
    input.name = "an argument";
    input.fixed = fixed_value(argument);
  }
  return input;
}

ProgramInput input_of(const JsonValue& spec,
                      const JsonValue& graph,
                      const ExportedProgram& program) {
  const auto [kind, value] = spec.only_member();
  ProgramInput input;
  if (kind == "parameter") {
    input.kind = Kind::parameter;
    input.name = value.at("parameter_name").text();
  } else if (kind == "buffer") {
    input.kind = Kind::buffer;
    input.name = value.at("buffer_name").text();
  } else if (kind == "tensor_constant") {
    input.kind = Kind::constant;
    input.name = value.at("tensor_constant_name").text();
  } else if (kind == "constant_input") {
    input.name = value.at("name").text();
    input.fixed = fixed_value(value.at("value"));
  } else if (kind == "user_input") {
    return user_input(value.at("arg"), graph, program);
  } else {
    spec.refuse(
        "a parameter, a buffer, a constant tensor or an argument; objects of "
        "classes are not supported");
  }
  return input;
}

/// A counter of batch normalisation is not changed in eval().
void mark_counters(ExportedProgram& program) {
  constexpr const char* kCounter = "num_batches_tracked";
  std::set<int> counters;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const auto& input = program.inputs[i];
    const bool is_counter =
        input.kind == Kind::buffer &&
        input.name.size() >= std::string(kCounter).size() &&
        input.name.rfind(kCounter) ==
            input.name.size() - std::string(kCounter).size();
    if (is_counter) {
      counters.insert(program.graph->inputs[i]);
    }
  }
  for (auto& node : program.graph->nodes) {
    if (node.target == "torch.ops.aten.add_.Tensor" &&
        !node.arguments.empty() &&
        node.arguments[0].kind == detail::ExportedArgument::Kind::slot &&
        counters.count(node.arguments[0].at) > 0) {
      node.mode = detail::ExportedNode::Mode::counter;
    }
  }
}

void check_outputs(const JsonValue& specs) {
  for (const auto& spec : specs.elements()) {
    if (spec.only_member().first != "user_output") {
      spec.refuse(
          "a result of forward; export without run_decompositions(), after "
          "which a program returns new values of buffers");
    }
  }
}

void read_specs(const JsonValue& module, ExportedProgram& program) {
  const auto calls = module.at("module_call_graph").elements();
  if (calls.empty()) {
    module.refuse("a module with a call");
  }
  const auto signature = calls[0].at("signature");
  auto inputs = detail::parse_tree_spec(signature.at("in_spec"));
  using TreeKind = detail::TreeSpec::Kind;
  if (inputs.kind != TreeKind::tuple || inputs.children.size() != 2 ||
      inputs.children[0].kind != TreeKind::tuple ||
      inputs.children[1].kind != TreeKind::dict) {
    signature.refuse("a signature with arguments and keyword arguments");
  }
  program.arguments = std::move(inputs.children[0]);
  program.kwargs = std::move(inputs.children[1]);
  program.results = detail::parse_tree_spec(signature.at("out_spec"));
}

ExportedProgram read_program(
    const JsonValue& file,
    const std::map<std::string, detail::ExportedTensor>& tensors) {
  ExportedProgram program;
  for (const auto& [symbol, range] : file.at("range_constraints").members()) {
    const auto least = range.find("min_val");
    const auto most = range.find("max_val");
    program.ranges[symbol] = {least ? least->integer() : 0,
                              most ? most->integer() : INT64_MAX};
  }
  const auto module = file.at("graph_module");
  const auto graph = module.at("graph");
  const auto signature = module.at("signature");
  for (const auto& spec : signature.at("input_specs").elements()) {
    program.inputs.push_back(input_of(spec, graph, program));
    const auto& input = program.inputs.back();
    if (input.kind == Kind::user) {
      continue;
    }
    const auto found = tensors.find(input.name);
    TORCH_CHECK(found != tensors.end(),
                "it has no tensor \"",
                input.name,
                "\", which its program needs");
    if (input.kind == Kind::parameter && !program.device) {
      program.device = found->second.device;
    }
  }
  check_outputs(signature.at("output_specs"));
  read_specs(module, program);
  detail::GraphReader reader(program.device);
  program.graph = reader.read(graph);
  std::string missing;
  for (const auto& one : std::set<std::string>(reader.missing().begin(),
                                               reader.missing().end())) {
    missing += "\n  " + one;
  }
  TORCH_CHECK(missing.empty(),
              "it needs what neither this LibTorch nor the libraries of "
              "ExportedModuleOptions have:",
              missing);
  TORCH_CHECK(program.graph->inputs.size() == program.inputs.size() &&
                  program.graph->outputs.size() == program.results.size(),
              "its program does not match its signature");
  mark_counters(program);
  return program;
}

void load_library(const std::string& path) {
  TORCH_CHECK(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr,
              "Expected a library of operators, but it cannot be loaded: ",
              ::dlerror());
}

/// The module that holds the parameter of this name; makes it if necessary.
/// Leaves the last part in `name`.
torch::nn::Module& module_of(torch::nn::Module& root, std::string& name) {
  auto* module = &root;
  for (auto dot = name.find('.'); dot != std::string::npos;
       dot = name.find('.')) {
    const auto part = name.substr(0, dot);
    name = name.substr(dot + 1);
    const auto children = module->named_children();
    const auto* child = children.find(part);
    module = child != nullptr
                 ? child->get()
                 : module
                       ->register_module(
                           part, std::make_shared<torch::nn::Module>(part))
                       .get();
  }
  return *module;
}

bool is_equal(const c10::IValue& left, const c10::IValue& right) {
  if (left.isNone() || right.isNone()) {
    return left.isNone() && right.isNone();
  }
  if (left.isString() || right.isString()) {
    return left.isString() && right.isString() &&
           left.toStringRef() == right.toStringRef();
  }
  const auto number = [](const c10::IValue& value) -> std::optional<double> {
    return value.isInt()      ? std::optional<double>(value.toInt())
           : value.isBool()   ? std::optional<double>(value.toBool())
           : value.isDouble() ? std::optional<double>(value.toDouble())
                              : std::nullopt;
  };
  return number(left) && number(left) == number(right);
}

/// Checks sizes of inputs, and remembers the sizes of symbols.
class InputChecks {
 public:
  explicit InputChecks(const ExportedProgram& program) : program_(program) {}

  void check(const ProgramInput& input, const c10::IValue& value) {
    if (input.fixed) {
      TORCH_CHECK(is_equal(*input.fixed, value),
                  "Expected input ",
                  input.name,
                  " to be ",
                  *input.fixed,
                  ", with which the program was exported, but got another "
                  "value; export a program for each value");
      return;
    }
    if (!input.sizes) {
      TORCH_CHECK(value.isInt() || value.isDouble() || value.isBool(),
                  "Expected input ",
                  input.name,
                  " to be a number, but got a ",
                  value.tagKind());
      return;
    }
    TORCH_CHECK(value.isTensor() && value.toTensor().defined(),
                "Expected input ",
                input.name,
                " to be a tensor, but got a ",
                value.tagKind());
    const auto sizes = value.toTensor().sizes();
    TORCH_CHECK(sizes.size() == input.sizes->size(),
                "Expected input ",
                input.name,
                " to have ",
                input.sizes->size(),
                " dimensions, but got the sizes ",
                sizes);
    for (size_t i = 0; i < sizes.size(); ++i) {
      check_size(input.name, i, (*input.sizes)[i], sizes[i]);
    }
  }

 private:
  void check_size(const std::string& name,
                  size_t at,
                  const Dimension& dimension,
                  int64_t size) {
    if (!dimension.is_checked) {
      return;
    }
    if (dimension.symbol.empty()) {
      TORCH_CHECK(size == dimension.size,
                  "Expected dimension ",
                  at,
                  " of input ",
                  name,
                  " to be ",
                  dimension.size,
                  ", as in the export, but got ",
                  size,
                  "; export it as dynamic (dynamic_shapes)");
      return;
    }
    const auto [known, is_new] = symbols_.emplace(dimension.symbol, size);
    TORCH_CHECK(is_new || known->second == size,
                "Expected dimension ",
                at,
                " of input ",
                name,
                " to be ",
                known->second,
                ", as another one that was exported as equal, but got ",
                size);
    const auto& range = program_.ranges.at(dimension.symbol);
    // torch.export writes 2 for any size, as a program for 0 or 1 may differ.
    const bool is_small = range.least > 2 && size < range.least;
    TORCH_CHECK(!is_small && size <= range.most,
                "Expected dimension ",
                at,
                " of input ",
                name,
                " to be from ",
                range.least > 2 ? range.least : 0,
                " to ",
                range.most,
                ", as in the export, but got ",
                size);
  }

  const ExportedProgram& program_;
  std::map<std::string, int64_t> symbols_;
};

/// The leaves of the arguments, in the order of the program's user inputs.
std::vector<c10::IValue> leaves_of(const ExportedProgram& program,
                                   std::vector<c10::IValue> inputs,
                                   const ExportedModuleImpl::Kwargs& kwargs) {
  const auto& arguments = program.arguments.children;
  TORCH_CHECK(inputs.size() == arguments.size(),
              "Expected ",
              arguments.size(),
              " positional arguments, as in the export, but got ",
              inputs.size());
  std::vector<c10::IValue> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    flatten_tree(
        arguments[i], inputs[i], "argument " + std::to_string(i), leaves);
  }
  std::vector<const ProgramInput*> users;
  for (const auto& input : program.inputs) {
    if (input.kind == Kind::user) {
      users.push_back(&input);
    }
  }
  size_t found = 0;
  for (size_t i = 0; i < program.kwargs.keys.size(); ++i) {
    const auto& spec = program.kwargs.children[i];
    const auto given = kwargs.find(program.kwargs.keys[i]);
    if (given != kwargs.end()) {
      ++found;
      flatten_tree(spec, given->second, "argument " + given->first, leaves);
      continue;
    }
    for (size_t leaf = spec.size(); leaf > 0; --leaf) {
      TORCH_CHECK(leaves.size() < users.size() && users[leaves.size()]->fixed,
                  "Expected the argument ",
                  program.kwargs.keys[i],
                  ", but got none");
      leaves.push_back(*users[leaves.size()]->fixed);
    }
  }
  TORCH_CHECK(found == kwargs.size(),
              "Expected only keyword arguments of the export, but got another "
              "one");
  TORCH_CHECK(leaves.size() == users.size(),
              "Expected ",
              users.size(),
              " inputs, but got ",
              leaves.size());
  return leaves;
}

}  // namespace

ExportedModuleImpl::ExportedModuleImpl(const std::string& path,
                                       const ExportedModuleOptions& options)
    : torch::nn::Module("ExportedModule"), path_(path) {
  for (const auto& library : options.libraries()) {
    load_library(library);
  }
  try {
    archive_ = std::make_shared<const detail::ExportedArchive>(path);
    const auto tensors = archive_->tensors("model");
    program_ = std::make_shared<const ExportedProgram>(
        read_program(archive_->program("model"), tensors));
    register_tensors(tensors);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false,
                "Expected ",
                path,
                " to be a program that can be trained, but: ",
                error.what_without_backtrace());
  }
}

ExportedModuleImpl::ExportedModuleImpl(
    std::string path,
    std::shared_ptr<const detail::ExportedArchive> archive,
    std::shared_ptr<const detail::ExportedProgram> program)
    : torch::nn::Module("ExportedModule"),
      path_(std::move(path)),
      archive_(std::move(archive)),
      program_(std::move(program)) {}

std::shared_ptr<torch::nn::Module> ExportedModuleImpl::clone(
    const std::optional<torch::Device>& device) const {
  std::map<std::string, detail::ExportedTensor> tensors;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].defined()) {
      tensors[program_->inputs[i].name] = {
          tensors_[i].detach(), "", tensors_[i].requires_grad()};
    }
  }
  std::shared_ptr<ExportedModuleImpl> copy(
      new ExportedModuleImpl(path_, archive_, program_));
  copy->register_tensors(tensors);
  copy->train(is_training());
  if (device) {
    copy->to(*device);
  }
  return copy;
}

void ExportedModuleImpl::to(torch::Device device,
                            torch::Dtype dtype,
                            bool non_blocking) {
  Module::to(device, dtype, non_blocking);
  move_constants(device);
}

void ExportedModuleImpl::to(torch::Device device, bool non_blocking) {
  Module::to(device, non_blocking);
  move_constants(device);
}

void ExportedModuleImpl::move_constants(torch::Device device) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (program_->inputs[i].kind == Kind::constant) {
      tensors_[i] = tensors_[i].to(device);
    }
  }
}

void ExportedModuleImpl::register_tensors(
    const std::map<std::string, detail::ExportedTensor>& tensors) {
  // Tensors that were one in Python are views of one record.
  std::map<std::pair<const void*, std::vector<int64_t>>, std::string> firsts;
  std::map<std::string, torch::Tensor> registered;
  for (const auto& input : program_->inputs) {
    if (input.kind == Kind::user) {
      tensors_.emplace_back();
      continue;
    }
    const auto& tensor = tensors.at(input.name);
    if (input.kind == Kind::constant) {
      tensors_.push_back(tensor.value);
      continue;
    }
    auto first = input.name;
    if (tensor.value.numel() > 0) {
      first = firsts
                  .emplace(std::pair(tensor.value.const_data_ptr(),
                                     tensor.value.sizes().vec()),
                           input.name)
                  .first->second;
    }
    first_names_[input.name] = first;
    auto& one = registered[first];
    if (!one.defined()) {
      auto name = first;
      auto& module = module_of(*this, name);
      // A record may hold several tensors; each gets memory of its own.
      const auto value = tensor.value.clone();
      one = input.kind == Kind::parameter
                ? module.register_parameter(name, value, tensor.requires_grad)
                : module.register_buffer(name, value);
    }
    tensors_.push_back(one);
  }
}

c10::IValue ExportedModuleImpl::forward(std::vector<c10::IValue> inputs,
                                        const Kwargs& kwargs) {
  const auto leaves = leaves_of(*program_, std::move(inputs), kwargs);
  InputChecks checks(*program_);
  detail::RunMode mode;
  mode.training = is_training();
  std::vector<c10::IValue> values;
  size_t next = 0;
  for (size_t i = 0; i < program_->inputs.size(); ++i) {
    const auto& input = program_->inputs[i];
    if (input.kind == Kind::user) {
      checks.check(input, leaves[next]);
      values.push_back(leaves[next++]);
      continue;
    }
    if (input.kind == Kind::parameter) {
      mode.device = tensors_[i].device();
    }
    values.emplace_back(tensors_[i]);
  }
  const auto results =
      detail::run_graph(*program_->graph, std::move(values), mode);
  size_t result = 0;
  return detail::unflatten_tree(program_->results, results, result);
}

void ExportedModuleImpl::save(const std::string& path) const {
  std::map<std::string, torch::Tensor> values;
  auto all = named_parameters();
  for (const auto& item : named_buffers()) {
    all.insert(item.key(), item.value());
  }
  for (const auto& [name, first] : first_names_) {
    values[name] = all[first];
  }
  archive_->save(path, "model", values);
}

void ExportedModuleImpl::pretty_print(std::ostream& stream) const {
  stream << "ddp::ExportedModule(" << path_ << ")";
}

}  // namespace ddp
