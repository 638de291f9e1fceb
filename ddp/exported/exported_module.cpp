#include "ddp/exported/exported_module.h"

#include <dlfcn.h>

#include "ddp/exported/archive.h"
#include "ddp/exported/program.h"

namespace ddp {
namespace {

using detail::ExportedArchive;
using Kind = detail::StateInput::Kind;

/// Calls `read`, and adds the name of the file to its errors.
template <typename Read>
void read_file(const std::string& path, const Read& read) {
  try {
    read();
  } catch (const c10::Error& error) {
    TORCH_CHECK(false,
                "Expected ",
                path,
                " to be a program that can be trained, but: ",
                error.what_without_backtrace());
  }
}

/// Returns the module that holds the parameter of this name; makes it if
/// necessary. Leaves the last part in `name`.
torch::nn::Module& module_of(torch::nn::Module& root, std::string& name) {
  const auto dot = name.find('.');
  if (dot == std::string::npos) {
    return root;
  }
  const auto part = name.substr(0, dot);
  name = name.substr(dot + 1);
  if (!root.named_children().contains(part)) {
    root.register_module(part, std::make_shared<torch::nn::Module>(part));
  }
  return module_of(*root.named_children()[part], name);
}

}  // namespace

ExportedModuleImpl::ExportedModuleImpl(const std::string& path,
                                       const ExportedModuleOptions& options)
    : ExportedModuleImpl() {
  for (const auto& library : options.libraries()) {
    TORCH_CHECK(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr,
                "Expected a library of operators, but it cannot be loaded: ",
                ::dlerror());
  }
  read_file(path, [&] {
    archive_ = std::make_shared<const ExportedArchive>(path);
    bind_program(read(*archive_));
  });
  if (!options.eval_program().empty()) {
    read_file(options.eval_program(), [&] {
      bind_eval_program(read(ExportedArchive(options.eval_program())));
    });
  }
}

ExportedModuleImpl::BoundProgram ExportedModuleImpl::read(
    const ExportedArchive& archive) {
  const auto tensors = archive.tensors();
  BoundProgram bound;
  bound.program = std::make_shared<const detail::ExportedProgram>(
      archive.program(), tensors);
  for (const auto& input : bound.program->state) {
    bound.tensors.push_back(tensors.at(input.name).value);
  }
  return bound;
}

/// Registers copies of the parameters and buffers.
void ExportedModuleImpl::bind_program(const BoundProgram& read) {
  program_ = read;
  // Tensors that were one in Python have one memory.
  std::map<std::pair<const void*, std::vector<int64_t>>, torch::Tensor> firsts;
  for (size_t i = 0; i < read.tensors.size(); ++i) {
    const auto kind = read.program->state[i].kind;
    const auto& value = read.tensors[i];
    if (kind == Kind::constant) {
      continue;
    }
    torch::Tensor alone;
    auto& registered =
        value.numel() == 0
            ? alone
            : firsts[{value.const_data_ptr(), value.sizes().vec()}];
    if (!registered.defined()) {
      auto name = read.program->state[i].name;
      auto& module = module_of(*this, name);
      const auto copy = value.detach().clone();
      registered =
          kind == Kind::parameter
              ? module.register_parameter(name, copy, value.requires_grad())
              : module.register_buffer(name, copy);
    }
    program_.tensors[i] = registered;
  }
}

/// Gives the program for eval() the tensors of the other one.
void ExportedModuleImpl::bind_eval_program(const BoundProgram& read) {
  eval_program_ = read;
  auto mine = named_tensors();
  for (size_t i = 0; i < read.tensors.size(); ++i) {
    if (read.program->state[i].kind == Kind::constant) {
      continue;
    }
    const auto sizes = read.tensors[i].sizes();
    const auto& name = read.program->state[i].name;
    const auto& tensor = mine[name];
    TORCH_CHECK(tensor.defined() && tensor.sizes() == sizes,
                "the program for train() has no tensor \"",
                name,
                "\" of the sizes ",
                sizes);
    eval_program_.tensors[i] = tensor;
  }
}

std::shared_ptr<torch::nn::Module> ExportedModuleImpl::clone(
    const std::optional<torch::Device>& device) const {
  std::shared_ptr<ExportedModuleImpl> copy(new ExportedModuleImpl());
  copy->archive_ = archive_;
  copy->bind_program(program_);
  if (eval_program_.program) {
    copy->bind_eval_program(eval_program_);
  }
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
  for (auto* bound : {&program_, &eval_program_}) {
    for (auto& tensor : bound->tensors) {
      // Parameters and buffers have been moved in place.
      tensor = tensor.to(device);
    }
  }
}

c10::IValue ExportedModuleImpl::forward(std::vector<c10::IValue> inputs,
                                        const Kwargs& kwargs) {
  const bool is_eval_program = eval_program_.program && !is_training();
  const auto& bound = is_eval_program ? eval_program_ : program_;
  const auto& program = *bound.program;
  detail::RunMode mode;
  mode.training = is_training() || is_eval_program;
  detail::Values values;
  for (size_t i = 0; i < bound.tensors.size(); ++i) {
    if (program.state[i].kind == Kind::parameter) {
      mode.device = bound.tensors[i].device();
    }
    const bool rests = program.state[i].is_counter && !mode.training;
    values.emplace_back(rests ? bound.tensors[i].clone() : bound.tensors[i]);
  }
  for (auto& leaf : program.leaves_of(std::move(inputs), kwargs)) {
    values.push_back(std::move(leaf));
  }
  size_t next = 0;
  return detail::unflatten_tree(
      program.results, program.graph->run(std::move(values), mode), next);
}

std::map<std::string, torch::Tensor> ExportedModuleImpl::named_tensors() const {
  std::map<std::string, torch::Tensor> tensors;
  for (size_t i = 0; i < program_.tensors.size(); ++i) {
    tensors[program_.program->state[i].name] = program_.tensors[i];
  }
  return tensors;
}

void ExportedModuleImpl::save(const std::string& path) const {
  archive_->save(path, named_tensors());
}

}  // namespace ddp
