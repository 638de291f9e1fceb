#include "ddp/exchanges/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
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
constexpr const char* kPasses = "passes";
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
                  options.seed(),
                  ", start_after ",
                  options.start_after());
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
  TORCH_CHECK(options.start_after() >= 0,
              "Expected start_after of PowerSGD not to be negative, but got ",
              options.start_after());
  return options;
}

/// Returns the relative threshold below which the remainder of a column counts
/// as zero. If a column depends linearly on the columns before it, its
/// remainder is rounding noise with an arbitrary direction.
double rounding_of(at::ScalarType dtype) {
  constexpr double kMargin = 16;
  switch (dtype) {
    case at::kBFloat16:
      return kMargin * std::numeric_limits<c10::BFloat16>::epsilon();
    case at::kHalf:
      return kMargin * std::numeric_limits<c10::Half>::epsilon();
    case at::kFloat:
      return kMargin * std::numeric_limits<float>::epsilon();
    default:
      return kMargin * std::numeric_limits<double>::epsilon();
  }
}

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const auto norm_of = [](const at::Tensor& columns) {
    return at::linalg_vector_norm(columns, 2, 1, /*keepdim=*/true);
  };
  const int64_t columns = matrices.size(2);
  const auto limits = norm_of(matrices) * rounding_of(matrices.scalar_type());
  for (int64_t i = 0; i < columns; ++i) {
    const auto column = matrices.narrow(2, i, 1);
    auto norm = norm_of(column);
    if (epsilon == 0) {
      norm.masked_fill_(norm <= limits.narrow(2, i, 1),
                        std::numeric_limits<double>::infinity());
    } else {
      norm.add_(epsilon);
    }
    column.div_(norm);
    if (i + 1 < columns) {
      const auto rest = matrices.narrow(2, i + 1, columns - i - 1);
      rest.sub_((column * rest).sum(1, /*keepdim=*/true) * column);
    }
  }
}

/// Fills columns of zeros, each column with its own numbers; a factor with
/// zeros would stay zero for ever. Requires columns <= rows.
void fill_zero_columns(const at::Tensor& matrices) {
  const auto is_zero = matrices.eq(0).all(1, /*keepdim=*/true);
  matrices.add_(is_zero);
  matrices.diagonal(0, 1, 2).add_(is_zero.squeeze(1));
}

}  // namespace

void detail::orthogonalize(const at::Tensor& matrices, double epsilon) {
  const auto dtype = matrices.scalar_type();
  if (matrices.size(2) <= 2 || dtype == at::kHalf || dtype == at::kBFloat16) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

uint32_t detail::SeedDraws::next() {
  constexpr uint32_t kLimit = 1'000'000'000;
  constexpr uint32_t kMask = (1U << 30) - 1;
  ++count_;
  uint32_t number = kLimit;
  while (number >= kLimit) {
    number = static_cast<uint32_t>(random_()) & kMask;
  }
  return number;
}

/// A gradient that is sent as two factors. As a matrix it has one row for each
/// index of its first dimension.
struct PowerSGD::Factor {
  size_t gradient = 0;  // index in the bucket
  int64_t rows = 0;     // n
  int64_t columns = 0;  // m
  int64_t rank = 0;
  std::string name;   // of the parameter
  at::Tensor matrix;  // [1, n, m]; aliases the gradient if possible
  at::Tensor p;       // [1, n, rank], a view of `sent`
  at::Tensor q;       // [1, m, rank], a view of `qs`
  at::Tensor error;   // [1, n, m]; undefined without error feedback
  at::Tensor is_bad;  // one bool, in finish: a rank has inf or NaN

  int64_t p_numel() const { return rows * rank; }
  int64_t q_numel() const { return columns * rank; }
};

struct PowerSGD::Bucket {
  bool is_planned = false;
  // Factors of one shape are adjacent, as in PyTorch: random numbers are drawn
  // in this order.
  std::vector<Factor> factors;
  std::vector<size_t> plain;  // gradients that are sent uncompressed
  int64_t plain_numel = 0;
  int64_t p_numel = 0;
  int64_t q_numel = 0;
  std::vector<at::Tensor> gradients;  // views of the payload
  at::Tensor sent;                    // uncompressed gradients, then all P
  at::Tensor qs;
  std::optional<c10::Stream> stream;  // that has filled the bucket
  c10::intrusive_ptr<c10d::Work> work;
};

PowerSGD::PowerSGD(c10::intrusive_ptr<c10d::Backend> group,
                   const PowerSGDOptions& options)
    : group_(detail::required_group(std::move(group))),
      options_(checked(options)),
      draws_(options.seed()) {}

PowerSGD::~PowerSGD() = default;

/// `finish` divides by the size of the group.
double PowerSGD::scale(int ranks) const {
  const int size = group_->getSize();
  detail::check_covers(size, ranks);
  return static_cast<double>(size) / ranks;
}

void PowerSGD::start(const GradientBucket& given) {
  buckets_.resize(given.count);
  auto& bucket = buckets_[given.index];
  if (is_warming_up()) {
    bucket.sent = given.payload;
  } else {
    compress(bucket, given);
  }
  bucket.stream = detail::current_stream(given.payload.device());
  if (is_verified_) {
    send(bucket);
  }
}

/// Fills `sent` with the uncompressed gradients and the first factors.
void PowerSGD::compress(Bucket& bucket, const GradientBucket& given) {
  begin(bucket, given);
  for (const auto& gradient : bucket.gradients) {
    statistics_.numel_before += gradient.numel();
  }
  statistics_.numel_after +=
      bucket.plain_numel + bucket.p_numel + bucket.q_numel;
  add_errors(bucket);
  make_qs(bucket);
  bucket.sent =
      at::empty({bucket.plain_numel + bucket.p_numel}, given.payload.options());
  for (const auto& [gradient, sent] : plain_pieces(bucket)) {
    sent.copy_(gradient);
  }
  int64_t offset = bucket.plain_numel;
  for (auto& factor : bucket.factors) {
    factor.p = bucket.sent.narrow(0, offset, factor.p_numel())
                   .view({1, factor.rows, factor.rank});
    at::bmm_out(factor.p, factor.matrix, factor.q);
    offset += factor.p_numel();
  }
  if (given.is_last()) {
    loaded_ = {};
  }
}

void PowerSGD::send(Bucket& bucket) {
  if (bucket.sent.numel() > 0) {
    std::vector<at::Tensor> tensors{bucket.sent};
    bucket.work = group_->allreduce(tensors);
  }
}

/// Runs at the end of the first pass, because it waits for the other ranks.
/// Until then nothing is sent: collectives of unequal sizes would block for
/// ever or add unrelated elements.
void PowerSGD::verify_options(c10::Device device) {
  detail::verify_across_ranks(*group_,
                              device,
                              {text_of_options(options_)},
                              "options of PowerSGD",
                              "set them alike");
  is_verified_ = true;
  for (auto& bucket : buckets_) {
    detail::join_stream(*bucket.stream);
    send(bucket);
  }
}

void PowerSGD::begin(Bucket& bucket, const GradientBucket& given) {
  bucket.gradients = given.gradients();
  const bool is_first = !std::exchange(bucket.is_planned, true);
  if (is_first) {
    plan(bucket);
  }
  for (auto& factor : bucket.factors) {
    factor.matrix = bucket.gradients[factor.gradient].reshape(
        {1, factor.rows, factor.columns});
    if (is_first) {
      factor.name = given.parameters[factor.gradient].name;
      if (options_.error_feedback() && !loaded_.isNone()) {
        factor.error =
            find_in_state(loaded_, factor.name + kError, factor.matrix.sizes())
                .to(factor.matrix.options(), false, /*copy=*/true);
      }
    }
  }
}

/// Divides the gradients into two kinds: sent as two factors, if these have
/// fewer elements than the gradient divided by `min_compression_rate`, and sent
/// uncompressed.
void PowerSGD::plan(Bucket& bucket) const {
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    const auto& gradient = bucket.gradients[i];
    const int64_t rows = gradient.dim() == 0 ? 1 : gradient.size(0);
    const int64_t columns = rows == 0 ? 0 : gradient.numel() / rows;
    Factor factor;
    factor.gradient = i;
    factor.rows = rows;
    factor.columns = columns;
    factor.rank = std::min({rows, columns, options_.rank()});
    const int64_t numel = factor.p_numel() + factor.q_numel();
    if (!gradient.is_floating_point() ||
        static_cast<double>(numel) * options_.min_compression_rate() >=
            static_cast<double>(gradient.numel())) {
      bucket.plain.push_back(i);
      bucket.plain_numel += gradient.numel();
      continue;
    }
    bucket.p_numel += factor.p_numel();
    bucket.q_numel += factor.q_numel();
    // Inserted behind the last factor of the same shape.
    const auto same =
        std::find_if(bucket.factors.rbegin(),
                     bucket.factors.rend(),
                     [&](const Factor& other) {
                       return other.rows == rows && other.columns == columns;
                     });
    bucket.factors.insert(
        same == bucket.factors.rend() ? bucket.factors.end() : same.base(),
        std::move(factor));
  }
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
    bucket.qs = at::empty({bucket.q_numel}, bucket.gradients[0].options());
    if (!resumes) {
      generator = at::detail::createCPUGenerator(draws_.next());
    }
  }
  int64_t offset = 0;
  for (auto& factor : bucket.factors) {
    if (!is_warm) {
      factor.q = bucket.qs.narrow(0, offset, factor.q_numel())
                     .view({1, factor.columns, factor.rank});
      offset += factor.q_numel();
      // Drawn on the CPU, so that all ranks draw the same numbers.
      factor.q.copy_(
          resumes
              ? find_in_state(loaded_, factor.name + kQ, factor.q.sizes())
              : at::randn(factor.q.sizes(), generator, factor.q.scalar_type()));
    }
    detail::orthogonalize(factor.q, options_.orthogonalization_epsilon());
    if (is_warm || resumes) {
      fill_zero_columns(factor.q);
    }
  }
}

void PowerSGD::finish(const GradientBucket& given) {
  if (!is_verified_) {
    verify_options(given.payload.device());
  }
  auto& bucket = buckets_[given.index];
  const auto what = "all-reduce of " + given.text();
  if (const auto work = std::exchange(bucket.work, nullptr)) {
    detail::wait(work, *group_, what);
  }
  const int ranks = group_->getSize();
  if (is_warming_up()) {
    std::exchange(bucket.sent, {}).div_(ranks);
    passes_ += given.is_last() ? 1 : 0;
    return;
  }
  bucket.sent.narrow(0, 0, bucket.plain_numel).div_(ranks);
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
  for (auto& factor : bucket.factors) {
    store_product(
        factor,
        qs_before.narrow(0, factor.q.storage_offset() - begin, factor.q.numel())
            .view(factor.q.sizes()),
        bucket.gradients[factor.gradient]);
  }
  detail::record_stream(bucket.qs);
  detail::record_stream(std::exchange(bucket.sent, {}));
  bucket.gradients.clear();
  passes_ += given.is_last() ? 1 : 0;
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
  for (const size_t i : bucket.plain) {
    const auto& gradient = bucket.gradients[i];
    pieces.emplace_back(
        gradient,
        bucket.sent.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
    offset += gradient.numel();
  }
  return pieces;
}

c10::IValue PowerSGD::state_dict() const {
  const auto passes = at::scalar_tensor(passes_, at::kLong);
  if (!loaded_.isNone()) {  // not yet consumed by a pass
    const auto state = loaded_.toGenericDict().copy();
    state.insert_or_assign(kPasses, passes);
    return state;
  }
  auto state = detail::new_dict().toGenericDict();
  state.insert(kPasses, passes);
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
  find_in_state(state, kPasses, {});
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
  passes_ = find_in_state(state, kPasses, {}).item<int64_t>();
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
