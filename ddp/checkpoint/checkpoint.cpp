#include "ddp/checkpoint/checkpoint.h"

#include <utility>

#include "ddp/checkpoint/detail/exchange_entry.h"
#include "ddp/checkpoint/detail/load_together.h"
#include "ddp/job/error_text.h"

namespace ddp {

Checkpoint::Checkpoint(std::shared_ptr<torch::nn::Module> model) {
  add("model", std::move(model));
}

Checkpoint& Checkpoint::add(std::string name,
                            std::shared_ptr<torch::nn::Module> module) {
  parts_.add(std::move(name), detail::entry_of(std::move(module)));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name,
                            torch::optim::Optimizer& optimizer) {
  parts_.add(std::move(name), detail::entry_of(optimizer));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, DistributedSampler sampler) {
  parts_.add(std::move(name), detail::entry_of(std::move(sampler)));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, GradScaler& scaler) {
  parts_.add(std::move(name), detail::entry_of(scaler));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name, ModelAverager& averager) {
  parts_.add(std::move(name), detail::entry_of(averager));
  return *this;
}

Checkpoint& Checkpoint::add(std::string name,
                            std::shared_ptr<Exchange> exchange) {
  parts_.add(std::move(name), detail::entry_of(std::move(exchange)));
  return *this;
}

Checkpoint& Checkpoint::add_variable(const std::string& name,
                                     detail::CheckpointVariable variable,
                                     CheckpointScope scope) {
  parts_.add(
      name,
      detail::entry_of(name, variable, scope == CheckpointScope::per_rank));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name,
                            bool& variable,
                            CheckpointScope scope) {
  return add_variable(name, &variable, scope);
}

Checkpoint& Checkpoint::add(const std::string& name,
                            int64_t& variable,
                            CheckpointScope scope) {
  return add_variable(name, &variable, scope);
}

Checkpoint& Checkpoint::add(const std::string& name,
                            double& variable,
                            CheckpointScope scope) {
  return add_variable(name, &variable, scope);
}

Checkpoint& Checkpoint::add(const std::string& name,
                            std::string& variable,
                            CheckpointScope scope) {
  return add_variable(name, &variable, scope);
}

Checkpoint& Checkpoint::add(const std::string& name,
                            torch::Tensor& variable,
                            CheckpointScope scope) {
  return add_variable(name, &variable, scope);
}

Checkpoint& Checkpoint::optimizer(torch::optim::Optimizer& optimizer) {
  parts_.set("optimizer", detail::entry_of(optimizer));
  return *this;
}

Checkpoint& Checkpoint::sampler(DistributedSampler sampler) {
  parts_.set("sampler", detail::entry_of(std::move(sampler)));
  return *this;
}

Checkpoint& Checkpoint::scaler(GradScaler& scaler) {
  parts_.set("scaler", detail::entry_of(scaler));
  return *this;
}

Checkpoint& Checkpoint::process_group(c10::intrusive_ptr<c10d::Backend> group) {
  group_ = std::move(group);
  return *this;
}

Checkpoint& Checkpoint::epoch(int64_t epoch) {
  parts_.epoch = epoch;
  return *this;
}

Checkpoint& Checkpoint::step(int64_t step) {
  parts_.step = step;
  return *this;
}

Checkpoint& Checkpoint::trained(std::optional<size_t> examples) {
  parts_.trained = examples;
  return *this;
}

void Checkpoint::save(const std::string& path) const {
  const detail::Ranks ranks(group_);
  const auto value = detail::collect(parts_, ranks);
  ranks.run_on_all([&] {
    if (ranks.rank() == 0) {
      detail::write_torch_file(path,
                               detail::explain("Cannot save " + path, value));
    }
  });
}

void Checkpoint::load(const std::string& path) {
  const detail::Ranks ranks(group_);
  detail::TorchFile file;
  const auto error = detail::read_together(path, ranks, file);
  if (!error.empty()) {
    ranks.fail(error);
  }
  detail::apply_on_all_ranks(path, file, parts_, ranks);
}

}  // namespace ddp
