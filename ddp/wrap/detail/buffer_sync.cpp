#include "ddp/wrap/detail/buffer_sync.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"

namespace ddp::detail {
namespace {

at::Tensor shape_alone(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
}

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

}  // namespace

BufferSync::BufferSync(const ModuleRecord& modules, BufferHook hook)
    : modules_(modules), hook_(std::move(hook)) {
  list();
  for (const auto& tensor : tensors_) {
    compared_.push_back(shape_alone(tensor));
  }
}

void BufferSync::list() {
  owners_.clear();
  for (const auto& module : modules_.modules()) {
    owners_.push_back({module.get(), module->buffers(/*recurse=*/false)});
  }
  buffers_.clear();
  tensors_.clear();
  const auto all = modules_.modules().front()->named_buffers();
  for (const auto& item : distinct_tensors(all, modules_.ignored())) {
    buffers_.insert(item.name, item.tensor);
    tensors_.push_back(item.tensor);
  }
}

bool BufferSync::is_listed() const {
  const auto& modules = modules_.modules();
  return std::equal(owners_.begin(),
                    owners_.end(),
                    modules.begin(),
                    modules.end(),
                    [](const Owner& owner, const auto& module) {
                      const auto now = module->buffers(/*recurse=*/false);
                      return owner.module == module.get() &&
                             std::equal(owner.buffers.begin(),
                                        owner.buffers.end(),
                                        now.begin(),
                                        now.end(),
                                        [](const auto& a, const auto& b) {
                                          return a.is_same(b);
                                        });
                    });
}

bool BufferSync::has_changed() {
  if (!is_listed()) {
    list();
  }
  return !std::equal(compared_.begin(),
                     compared_.end(),
                     tensors_.begin(),
                     tensors_.end(),
                     are_alike);
}

void BufferSync::compare(c10d::Backend& group) {
  std::vector<std::string> lines;
  for (const auto& item : buffers_) {
    lines.push_back(c10::str(item.key(),
                             " of ",
                             item.value().scalar_type(),
                             " ",
                             item.value().sizes()));
  }
  verify_across_ranks(
      group,
      c10::kCPU,
      lines,
      "buffers, which are copied from one rank at the end of a backward pass,",
      "give them one shape, name them in params_and_buffers_to_ignore, or set "
      "broadcast_buffers(false)");
  compared_.clear();
  for (const auto& tensor : tensors_) {
    compared_.push_back(shape_alone(tensor));
  }
}

void BufferSync::sync(int source, c10d::Backend& group) const {
  if (tensors_.empty()) {
    return;
  }
  if (!hook_) {
    broadcast_from(source, group, tensors_);
    return;
  }
  // Aliases with their own version counters, so that a hook's in-place changes
  // do not invalidate autograd graphs.
  NamedBuffers data;
  for (const auto& item : buffers_) {
    data.insert(item.key(), item.value().variable_data());
  }
  hook_(group, data);
}

}  // namespace ddp::detail
