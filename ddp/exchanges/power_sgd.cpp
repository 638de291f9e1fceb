#include "ddp/exchanges/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/job/peers.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/streams.h"

namespace ddp {
namespace {

constexpr const char* kDraws = "draws";
constexpr const char* kError = ".error";
constexpr const char* kQ = ".q";

at::Tensor find_in_state(const c10::IValue& state,
                         const std::string& name,
                         at::IntArrayRef sizes) {
  const detail::DictReader saved(state, "exchange");
  TORCH_CHECK(saved.has(name),
              "Expected ",
              name,
              " in the state of PowerSGD, but it is not there");
  const auto tensor = saved.tensor(name);
  TORCH_CHECK(tensor.sizes() == sizes,
              "Expected ",
              name,
              " of sizes ",
              sizes,
              " in the state of PowerSGD, but got ",
              tensor.sizes());
  return tensor;
}

std::string text_of_options(const PowerSGDOptions& options) {
  return c10::str("rank ",
                  options.rank(),
                  ", min_compression_rate ",
                  options.min_compression_rate(),
                  ", error_feedback ",
                  options.error_feedback(),
                  ", warm_start ",
                  options.warm_start(),
                  ", orthogonalization_epsilon ",
                  options.orthogonalization_epsilon(),
                  ", seed ",
                  options.seed());
}

/// Returns the options unchanged.
/// @throws c10::Error if an option is out of range.
const PowerSGDOptions& checked(const PowerSGDOptions& options) {
  TORCH_CHECK(options.rank() > 0,
              "Expected the rank of PowerSGD to be positive, but got ",
              options.rank());
  const double rate = options.min_compression_rate();
  TORCH_CHECK(std::isfinite(rate) && rate > 0,
              "Expected min_compression_rate of PowerSGD to be positive, but "
              "got ",
              rate);
  const double epsilon = options.orthogonalization_epsilon();
  TORCH_CHECK(std::isfinite(epsilon) && epsilon >= 0,
              "Expected orthogonalization_epsilon of PowerSGD to be a number "
              "that is not negative, but got ",
              epsilon);
  return options;
}

}  // namespace

PowerSGD::PowerSGD(c10::intrusive_ptr<c10d::Backend> group,
                   const PowerSGDOptions& options)
    : group_(detail::required_group(std::move(group))),
      options_(checked(options)),
      draws_(options.seed()) {}

/// `finish` divides by the size of the group. The reducer may have more ranks
/// than the group, and fewer may have inputs.
double PowerSGD::scale(int ranks) const {
  const int size = group_->getSize();
  return static_cast<double>(size) / std::min(ranks, size);
}

void PowerSGD::start(const GradientBucket& given) {
  auto& bucket = begin(given);
  const auto& layout = bucket.layout;
  statistics_.numel_before += layout.whole_numel;
  statistics_.numel_after += layout.sent_numel();
  add_errors(bucket);
  make_qs(bucket);
  bucket.sent =
      at::empty({layout.plain_numel + layout.p_numel}, given.payload.options());
  for (const auto& [gradient, sent] : plain_pieces(bucket)) {
    sent.copy_(gradient);
  }
  int64_t offset = layout.plain_numel;
  for (size_t i = 0; i < bucket.factors.size(); ++i) {
    auto& factor = bucket.factors[i];
    const auto& shape = layout.factors[i].shape;
    factor.p = bucket.sent.narrow(0, offset, shape.p_numel())
                   .view({1, shape.rows, shape.rank});
    at::bmm_out(factor.p, factor.matrix, factor.q);
    offset += shape.p_numel();
  }
  if (bucket.sent.numel() > 0) {
    std::vector<at::Tensor> tensors{bucket.sent};
    bucket.work = group_->allreduce(tensors);
  }
  if (given.is_last()) {
    loaded_ = {};
  }
}

PowerSGD::Bucket& PowerSGD::begin(const GradientBucket& given) {
  if (buckets_.empty()) {
    // Collectives of unequal sizes would block for ever or add unrelated
    // elements.
    detail::verify_across_ranks(*group_,
                                given.payload.device(),
                                {text_of_options(options_)},
                                "options of PowerSGD",
                                "set them alike");
  }
  buckets_.resize(given.count);
  auto& bucket = buckets_[given.index];
  bucket.gradients = given.gradients();
  const bool is_first = !std::exchange(bucket.is_planned, true);
  if (is_first) {
    bucket.layout = detail::low_rank_layout(
        bucket.gradients, options_.rank(), options_.min_compression_rate());
    bucket.factors.resize(bucket.layout.factors.size());
  }
  for (size_t i = 0; i < bucket.factors.size(); ++i) {
    const auto& [index, shape] = bucket.layout.factors[i];
    auto& factor = bucket.factors[i];
    factor.matrix =
        bucket.gradients[index].reshape({1, shape.rows, shape.columns});
    if (is_first) {
      factor.name = given.parameters[index].name;
      if (options_.error_feedback() && !loaded_.isNone()) {
        factor.error =
            find_in_state(loaded_, factor.name + kError, factor.matrix.sizes())
                .to(factor.matrix.options(), false, /*copy=*/true);
      }
    }
  }
  return bucket;
}

void PowerSGD::add_errors(Bucket& bucket) const {
  if (!options_.error_feedback()) {
    return;
  }
  for (auto& factor : bucket.factors) {
    if (factor.error.defined()) {
      factor.matrix.add_(factor.error);
    } else {
      factor.error = at::zeros_like(factor.matrix);
    }
  }
}

void PowerSGD::make_qs(Bucket& bucket) {
  const bool is_warm = options_.warm_start() && bucket.qs.defined();
  const bool resumes = options_.warm_start() && !loaded_.isNone();
  at::Generator generator;
  if (!is_warm) {
    bucket.qs =
        at::empty({bucket.layout.q_numel}, bucket.gradients[0].options());
    if (!resumes) {
      generator = at::detail::createCPUGenerator(draws_.next());
    }
  }
  int64_t offset = 0;
  for (size_t i = 0; i < bucket.factors.size(); ++i) {
    auto& factor = bucket.factors[i];
    const auto& shape = bucket.layout.factors[i].shape;
    if (!is_warm) {
      factor.q = bucket.qs.narrow(0, offset, shape.q_numel())
                     .view({1, shape.columns, shape.rank});
      offset += shape.q_numel();
      // Drawn on the CPU, so that all ranks draw the same numbers.
      factor.q.copy_(
          resumes
              ? find_in_state(loaded_, factor.name + kQ, factor.q.sizes())
              : at::randn(factor.q.sizes(), generator, factor.q.scalar_type()));
    }
    detail::orthogonalize(factor.q, options_.orthogonalization_epsilon());
    if (is_warm || resumes) {
      detail::fill_zero_columns(factor.q);
    }
  }
}

void PowerSGD::finish(const GradientBucket& given) {
  auto& bucket = buckets_[given.index];
  const auto what = "all-reduce of " + given.text();
  if (const auto work = std::exchange(bucket.work, nullptr)) {
    detail::wait(work, *group_, what);
  }
  const int ranks = group_->getSize();
  bucket.sent.narrow(0, 0, bucket.layout.plain_numel).div_(ranks);
  for (const auto& [gradient, sent] : plain_pieces(bucket)) {
    gradient.copy_(sent);
  }
  const auto qs_before = bucket.qs.clone();
  for (auto& factor : bucket.factors) {
    factor.is_bad = factor.p.isfinite().all().logical_not();
    detail::orthogonalize(factor.p, options_.orthogonalization_epsilon());
    at::bmm_out(factor.q, factor.matrix.transpose(1, 2), factor.p);
  }
  if (!bucket.factors.empty()) {
    std::vector<at::Tensor> tensors{bucket.qs};
    detail::wait(group_->allreduce(tensors), *group_, what);
    bucket.qs.div_(ranks);
  }
  const int64_t begin = bucket.qs.storage_offset();
  for (size_t i = 0; i < bucket.factors.size(); ++i) {
    auto& factor = bucket.factors[i];
    store_product(
        factor,
        qs_before.narrow(0, factor.q.storage_offset() - begin, factor.q.numel())
            .view(factor.q.sizes()),
        bucket.gradients[bucket.layout.factors[i].gradient]);
  }
  detail::record_stream(bucket.qs);
  detail::record_stream(std::exchange(bucket.sent, {}));
  bucket.gradients.clear();
}

/// If any rank has inf or NaN, sets the gradient to NaN on all ranks and keeps
/// the error and the factor of the previous pass, which would otherwise stay
/// NaN for ever. The decision is made on the device.
void PowerSGD::store_product(Factor& factor,
                             const at::Tensor& q_before,
                             const at::Tensor& gradient) {
  factor.is_bad.logical_or_(factor.q.isfinite().all().logical_not());
  factor.p.masked_fill_(factor.is_bad,
                        std::numeric_limits<double>::quiet_NaN());
  const auto product = at::bmm(factor.p, factor.q.transpose(1, 2));
  if (factor.error.defined()) {
    factor.matrix.sub_(product);
    factor.error.copy_(at::where(factor.is_bad, factor.error, factor.matrix));
  }
  factor.q.copy_(at::where(factor.is_bad, q_before, factor.q));
  gradient.copy_(product.view(gradient.sizes()));
  if (!factor.matrix.is_alias_of(gradient)) {
    detail::record_stream(factor.matrix);
  }
  factor.matrix.reset();
  factor.p.reset();
  factor.is_bad.reset();
}

/// Returns each uncompressed gradient with its slice of `sent`.
std::vector<std::pair<at::Tensor, at::Tensor>> PowerSGD::plain_pieces(
    const Bucket& bucket) {
  std::vector<std::pair<at::Tensor, at::Tensor>> pieces;
  int64_t offset = 0;
  for (const size_t i : bucket.layout.plain) {
    const auto& gradient = bucket.gradients[i];
    pieces.emplace_back(
        gradient,
        bucket.sent.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
    offset += gradient.numel();
  }
  return pieces;
}

c10::IValue PowerSGD::state_dict() const {
  if (!loaded_.isNone()) {
    return loaded_;  // not yet consumed by a pass
  }
  auto state = detail::new_dict().toGenericDict();
  state.insert(kDraws, at::scalar_tensor(draws_.count(), at::kLong));
  for (const auto& bucket : buckets_) {
    for (const auto& factor : bucket.factors) {
      if (factor.error.defined()) {
        state.insert(factor.name + kError, factor.error.clone());
      }
      if (options_.warm_start()) {
        state.insert(factor.name + kQ, factor.q.clone());
      }
    }
  }
  return state;
}

void PowerSGD::check_state_dict(const c10::IValue& state) const {
  find_in_state(state, kDraws, {});
  for (const auto& item : state.toGenericDict()) {
    TORCH_CHECK(item.key().isString() && item.value().isTensor(),
                "expected tensors by name as the state of PowerSGD, but got ",
                detail::describe(item.value()),
                " under ",
                item.key());
  }
}

void PowerSGD::load_state_dict(const c10::IValue& state) {
  check_state_dict(state);
  const auto draws = find_in_state(state, kDraws, {}).item<int64_t>();
  buckets_.clear();
  // A state with 0 draws was saved before the first pass.
  loaded_ = draws == 0 ? c10::IValue() : state;
  draws_ = detail::SeedDraws(options_.seed());
  while (draws_.count() < draws) {
    draws_.next();
  }
}

void PowerSGD::abandon() noexcept {
  for (auto& bucket : buckets_) {
    bucket.work.reset();
  }
}

}  // namespace ddp
