#include "ddp/reduce/reducer.h"

#include <utility>

#include "ddp/reduce/detail/reducer_impl.h"

namespace ddp {

Reducer::Reducer(std::vector<NamedParameter> parameters,
                 c10::intrusive_ptr<c10d::Backend> group,
                 const DistributedDataParallelOptions& options)
    : impl_(std::make_shared<detail::ReducerImpl>(
          std::move(parameters), std::move(group), options)) {}

Reducer::~Reducer() = default;

void Reducer::arm() {
  impl_->arm();
}

void Reducer::disarm() {
  impl_->disarm();
}

void Reducer::expect_local_passes() {
  impl_->expect_local_passes();
}

void Reducer::watch(const at::Tensor& output) {
  impl_->watch(output);
}

void Reducer::on_pass(std::function<void()> action) {
  impl_->on_pass(std::move(action));
}

void Reducer::mean_over(std::function<int()> ranks) {
  impl_->mean_over(std::move(ranks));
}

void Reducer::shadow_pass(int ranks) {
  impl_->shadow_pass(ranks);
}

void Reducer::forget_steps() {
  impl_->forget_steps();
}

void Reducer::release() {
  impl_->release();
}

void Reducer::change_group(c10::intrusive_ptr<c10d::Backend> group,
                           std::shared_ptr<Exchange> exchange) {
  impl_->change_group(std::move(group), std::move(exchange));
}

bool Reducer::is_in_pass() const {
  return impl_->is_in_pass();
}

std::vector<std::vector<size_t>> Reducer::plan() const {
  return impl_->plan();
}

}  // namespace ddp
