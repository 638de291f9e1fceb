#include "ddp/exported/exported_module.h"

#include <dlfcn.h>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

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

/// Returns the whole storage of a tensor.
torch::Tensor storage_of(const torch::Tensor& tensor) {
  return at::empty({0}, tensor.options()).set_(tensor.storage());
}

bool has_layout_of(const torch::Tensor& a, const torch::Tensor& b) {
  return a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

/// Returns the part of a storage that a tensor has of its own.
torch::Tensor part_of(const torch::Tensor& storage, const torch::Tensor& like) {
  return storage.as_strided(
      like.sizes(), like.strides(), like.storage_offset());
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
    bind_program(read(*archive_, options));
  });
  if (!options.eval_program().empty()) {
    read_file(options.eval_program(), [&] {
      bind_eval_program(read(ExportedArchive(options.eval_program()), options));
    });
  }
  move(std::nullopt, std::nullopt);
}

ExportedModuleImpl::BoundProgram ExportedModuleImpl::read(
    const ExportedArchive& archive, const ExportedModuleOptions& options) {
  const auto tensors = archive.tensors();
  BoundProgram bound;
  bound.program = std::make_shared<const detail::ExportedProgram>(
      archive.program(), tensors, options.check_guards());
  const auto& state = bound.program->state;
  const auto& graph = *bound.program->graph;
  // A tied tensor has several names, of which the graph reads one.
  std::vector<bool> is_read;
  for (size_t i = 0; i < state.size(); ++i) {
    auto value = tensors.at(state[i].name).value;
    is_read.push_back(graph.last_uses.count(graph.inputs[i]) > 0);
    bound.shares_with.push_back(i);
    for (size_t j = i; j-- > 0 && value.numel() > 0;) {
      const auto& other = bound.tensors[j];
      if (!value.is_alias_of(other)) {
        continue;
      }
      bound.shares_with[i] = j;
      if (value.sizes() == other.sizes() && has_layout_of(value, other) &&
          value.requires_grad() == other.requires_grad() &&
          (value.requires_grad() || state[i].kind == state[j].kind) &&
          !(is_read[i] && is_read[j])) {
        value = other;
        is_read[i] = is_read[j] = is_read[i] || is_read[j];
      }
    }
    bound.tensors.push_back(value);
  }
  return bound;
}

/// Registers the parameters and buffers, in the memory of the given ones.
void ExportedModuleImpl::bind_program(const BoundProgram& given) {
  program_ = given;
  std::map<const c10::TensorImpl*, torch::Tensor> bound;
  for (size_t i = 0; i < given.tensors.size(); ++i) {
    auto [kind, name, is_counter] = given.program->state[i];
    const auto& value = given.tensors[i];
    auto& tensor = bound[value.unsafeGetTensorImpl()];
    if (!tensor.defined()) {
      tensor = torch::autograd::make_variable(value);
      auto& module = module_of(*this, name);
      if (kind == Kind::parameter) {
        module.register_parameter(name, tensor, value.requires_grad());
      } else if (kind == Kind::buffer) {
        module.register_buffer(name, tensor);
      }
    }
    program_.tensors[i] = tensor;
  }
}

/// Gives the program for eval() the tensors of the other one.
void ExportedModuleImpl::bind_eval_program(const BoundProgram& given) {
  eval_program_ = given;
  auto mine = named_tensors();
  const auto& state = given.program->state;
  for (size_t i = 0; i < given.tensors.size(); ++i) {
    const auto& value = given.tensors[i];
    auto& tensor = eval_program_.tensors[i];
    if (state[i].kind != Kind::constant) {
      tensor = mine[state[i].name];
      TORCH_CHECK(tensor.defined() && tensor.sizes() == value.sizes(),
                  "the program for train() has no tensor \"",
                  state[i].name,
                  "\" of the sizes ",
                  value.sizes());
      continue;
    }
    tensor = torch::autograd::make_variable(value);
    const auto with = given.shares_with[i];
    TORCH_CHECK(with == i || has_layout_of(given.tensors[with],
                                           eval_program_.tensors[with]),
                "the program for train() has another layout of \"",
                state[with].name,
                "\", the memory of a constant");
  }
  share_constants(eval_program_);
}

/// Gives constants the present memory of the tensors that they share it with.
void ExportedModuleImpl::share_constants(const BoundProgram& bound) {
  for (size_t i = 0; i < bound.tensors.size(); ++i) {
    if (bound.program->state[i].kind == Kind::constant) {
      const auto& with = bound.tensors[bound.shares_with[i]];
      bound.tensors[i].set_data(part_of(storage_of(with), bound.tensors[i]));
    }
  }
}

void ExportedModuleImpl::load(torch::serialize::InputArchive& archive) {
  Module::load(archive);  // gives parameters and buffers other memory
  share_constants(program_);
  share_constants(eval_program_);
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
  copy->move(device, std::nullopt, /*non_blocking=*/false, /*copy=*/true);
  return copy;
}

void ExportedModuleImpl::to(torch::Device device,
                            torch::Dtype dtype,
                            bool non_blocking) {
  move(device, dtype, non_blocking);
}

void ExportedModuleImpl::to(torch::Dtype dtype, bool non_blocking) {
  move(std::nullopt, dtype, non_blocking);
}

void ExportedModuleImpl::to(torch::Device device, bool non_blocking) {
  move(device, std::nullopt, non_blocking);
}

/// Moves each storage once, so that tensors that share memory still do, and
/// share their version counter.
void ExportedModuleImpl::move(const std::optional<torch::Device>& device,
                              const std::optional<torch::Dtype>& dtype,
                              bool non_blocking,
                              bool copy) {
  const torch::NoGradGuard no_grad;
  std::map<std::pair<const c10::StorageImpl*, torch::Dtype>,
           std::vector<torch::Tensor>>
      storages;
  const auto add = [&storages](const std::vector<torch::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      storages[{tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type()}]
          .push_back(tensor);
    }
  };
  add(parameters());
  add(buffers());
  const auto own = storages;
  add(program_.tensors);
  add(eval_program_.tensors);
  for (const auto& [key, sharing] : storages) {
    const auto& first = sharing.front();
    const bool converts = dtype && own.count(key) > 0 &&
                          (first.is_floating_point() || first.is_complex());
    const auto storage =
        storage_of(first).to(device.value_or(first.device()),
                             converts ? *dtype : first.scalar_type(),
                             non_blocking,
                             copy);
    for (const auto& tensor : sharing) {
      tensor.set_data(part_of(storage, tensor));
      torch::autograd::impl::set_version_counter(
          tensor, torch::autograd::impl::version_counter(first));
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
    const auto with = bound.shares_with[i];
    TORCH_CHECK(bound.tensors[i].is_alias_of(bound.tensors[with]),
                "Expected \"",
                program.state[i].name,
                "\" to share memory with \"",
                program.state[with].name,
                "\", as in Python, but it has memory of its own; write values "
                "by copy_(), convert the whole module by to(), and train it "
                "without a DataParallel");
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
