#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace ddp {

namespace detail {
class ExportedArchive;
struct ExportedProgram;
}  // namespace detail

/// Options of `ExportedModule`; all of them are optional.
struct ExportedModuleOptions {
  /// Shared libraries that register operators which the program calls. They are
  /// loaded before the program is read, and never unloaded.
  TORCH_ARG(std::vector<std::string>, libraries) = {};
  /// A second file of torch.export.save: the same module, exported in eval().
  /// `forward` runs it in eval(), with the parameters and buffers of the first
  /// file and without any change, for a forward that reads `self.training`.
  TORCH_ARG(std::string, eval_program);
  /// Whether `forward` checks the guards of the program, as Python's
  /// `ep.module(check_guards=True)` does: conditions on the sizes and numbers
  /// of inputs for which the export took a branch of Python's forward. Without
  /// them other inputs silently compute that branch. Sizes that the export
  /// fixed, bounded or found equal are checked in any case.
  TORCH_ARG(bool, check_guards) = true;
};

/// A module written in Python, from a file of `torch.export.save` (PyTorch 2.10
/// or later): parameters and buffers have Python's names and values, and
/// `forward` runs the exported graph, one operator of LibTorch after another,
/// under autograd. `DistributedDataParallel`, optimizers, GradScaler, autocast
/// and checkpoints work on it as on any `torch::nn::Module`; of
/// `dp::DataParallel` only `forward_each`, because it finds no tensors in an
/// IValue.
///
/// - Export in train(). `eval()` then turns off dropout (also of attention and
///   recurrent layers), RReLU, and the batch statistics of norms that have
///   running ones, as in Python, and `train()` lets them run as they were
///   exported: parts of the module that were in eval() stay so. This holds for
///   layers of torch.nn, and for a function such as F.dropout in a line of
///   Python that reads `self.training`. For another call that eval() may
///   change, such as F.dropout(x), `forward` throws in eval(), since the file
///   does not say whether it does. With an
///   `ExportedModuleOptions::eval_program`, eval() is Python's exactly; without
///   it, an `if self.training` keeps the branch of the export.
/// - Tied parameters are one parameter, under the first of their names. Other
///   parameters and buffers that share memory in the file, such as a transposed
///   weight, share it here. torch.export.save separates constants and buffers
///   that are not persistent from the other tensors.
/// - Inputs: tensors, numbers, and tuples, lists and dicts of them, as in
///   Python's call at the export. Sizes must equal the sizes of the export,
///   except for dimensions that were exported as dynamic, and fulfil the
///   conditions (guards) under which the export took its branches of forward.
/// - A device that the program names as a literal follows the parameters to
///   their device (`to(device)`) if it was the parameters' device at the
///   export. Every other literal does not change.
///
/// @throws c10::Error, with the file and the place in it, if the file is
///   damaged or from PyTorch before 2.10; if it has operators that are neither
///   in this LibTorch nor in `libraries`, or guards that cannot be read (one
///   error that lists all); or if it
///   has an unsupported feature: `torch.autograd.grad` in forward, map, scan,
///   while_loop, objects of classes (torchbind), sparse and quantised tensors,
///   or a program after `run_decompositions()`, which returns new values of
///   buffers. The constructor reads the whole file and throws these errors.
///
/// Thread contract: as any torch::nn::Module. Several threads may call
/// `forward` in eval().
///
/// Example:
/// @code
///   // Python: torch.export.save(torch.export.export(net, (x,)), "net.pt2")
///   ddp::ExportedModule net("net.pt2");
///   net->to(device);
///   ddp::DistributedDataParallel model(net);
///   torch::Tensor out = model->forward(data).toTensor();
/// @endcode
///
/// Source: torch.export.load; torch::jit::Module for the interface.
class ExportedModuleImpl : public torch::nn::Module {
 public:
  /// Keyword arguments by name.
  using Kwargs = std::unordered_map<std::string, c10::IValue>;

  /// Reads a file of torch.export.save.
  /// @throws c10::Error as the class says.
  explicit ExportedModuleImpl(
      const std::string& path,
      const ExportedModuleOptions& options = ExportedModuleOptions());

  /// Runs the program.
  /// @param inputs  the positional arguments of Python's forward.
  /// @param kwargs  the keyword arguments. One that was a number, a string or
  ///   None at the export may be left out; if it is given, it has the value of
  ///   the export. All others are required.
  /// @returns the result of Python's forward: a tensor, or a tuple, list or
  ///   dict (`toTensor()`, `toTuple()`, `toList()`, `toGenericDict()`).
  /// @throws c10::Error that names the input, or the guard and its inputs, if
  ///   the program was not exported for their sizes or values.
  c10::IValue forward(std::vector<c10::IValue> inputs,
                      const Kwargs& kwargs = {});

  /// Runs the program with positional arguments alone.
  template <typename... Inputs>
  c10::IValue forward(const torch::Tensor& first, Inputs&&... others) {
    return forward(std::vector<c10::IValue>{
        first, c10::IValue(std::forward<Inputs>(others))...});
  }

  /// Writes the file again with the present parameters and buffers, for
  /// `torch.export.load`, AOTInductor and ExecuTorch. Replaces `path` as a
  /// whole: a process that ends meanwhile leaves the old file. An
  /// `eval_program` is not written.
  /// @throws c10::Error that names the file and the failed operation.
  void save(const std::string& path) const;
  using torch::nn::Module::save;

  /// Reads an archive of torch::save.
  void load(torch::serialize::InputArchive& archive) override;

  /// Returns a module with the same program and copies of the parameters and
  /// buffers.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Moves parameters, buffers and constants. Tensors that share memory still
  /// do.
  void to(torch::Device device, bool non_blocking = false) override;
  /// Converts the parameters and buffers of floating-point and complex dtypes,
  /// as Python does.
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  /// Does both.
  void to(torch::Device device,
          torch::Dtype dtype,
          bool non_blocking = false) override;

 private:
  /// A program and the tensors of its state, in its order.
  struct BoundProgram {
    std::shared_ptr<const detail::ExportedProgram> program;
    std::vector<torch::Tensor> tensors;
    std::vector<size_t> shares_with;  // index of the first one of its memory
  };

  ExportedModuleImpl() : Module("ExportedModule") {}
  static BoundProgram read(const detail::ExportedArchive& archive,
                           const ExportedModuleOptions& options);
  void bind_program(const BoundProgram& given);
  void bind_eval_program(const BoundProgram& given);
  static void share_constants(const BoundProgram& bound);
  std::map<std::string, torch::Tensor> named_tensors() const;
  void move(const std::optional<torch::Device>& device,
            const std::optional<torch::Dtype>& dtype,
            bool non_blocking = false,
            bool copy = false);

  std::shared_ptr<const detail::ExportedArchive> archive_;
  BoundProgram program_;
  BoundProgram eval_program_;  // null without one
};

TORCH_MODULE(ExportedModule);

}  // namespace ddp
