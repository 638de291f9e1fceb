#include "dp/detail/parameter_server/parts/early_push.h"

#include <cstring>
#include <utility>

#include <c10/core/GradMode.h>

namespace dp::detail {
namespace {

/// To the bit.
bool is_still(const at::Tensor& sent, const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() != at::kStrided ||
      gradient.scalar_type() != sent.scalar_type() ||
      gradient.sizes() != sent.sizes() || gradient.is_conj() ||
      gradient.is_neg()) {
    return false;
  }
  const auto now = gradient.detach().to(at::kCPU).contiguous();
  return sent.nbytes() == 0 ||
         std::memcmp(
             sent.const_data_ptr(), now.const_data_ptr(), sent.nbytes()) == 0;
}

}  // namespace

EarlyPush::EarlyPush(const Session& session)
    : links_(session.links), shards_(session.shards) {
  for (const auto& shard : shards_) {
    parts_.emplace_back(shard.size());
  }
}

void EarlyPush::arm() {
  if (!hooks_) {
    std::vector<at::Tensor> parameters;
    std::vector<std::pair<size_t, size_t>> places;
    for (size_t server = 0; server < shards_.size(); ++server) {
      for (size_t i = 0; i < shards_[server].size(); ++i) {
        // One that is frozen by now gets no gradient.
        if (shards_[server][i].requires_grad()) {
          parameters.push_back(shards_[server][i]);
          places.emplace_back(server, i);
        }
      }
    }
    hooks_.emplace(parameters,
                   [this, places = std::move(places)](size_t index) {
                     send(places[index].first, places[index].second);
                   });
  }
  ++guards_;
}

void EarlyPush::open() {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
}

std::vector<bool> EarlyPush::unchanged(size_t server) {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  std::vector<bool> result;
  for (size_t i = 0; i < parts_[server].size(); ++i) {
    const auto& part = parts_[server][i];
    result.push_back(part.is_sent &&
                     is_still(part.copy->values(0), shards_[server][i].grad()));
  }
  return result;
}

bool EarlyPush::finish(const std::vector<Packet>& rest, double loss) {
  const auto senders = stop();
  if (!senders) {
    return false;
  }
  senders->finish(rest, loss);
  sent_bytes_ += senders->sent_bytes();
  return true;
}

void EarlyPush::cancel() {
  if (const auto senders = stop()) {
    senders->cancel();
    sent_bytes_ += senders->sent_bytes();
  }
}

void EarlyPush::close() {
  stop();
}

void EarlyPush::send(size_t server, size_t parameter) {
  const std::lock_guard lock(mutex_);
  auto& part = parts_[server][parameter];
  if (guards_ == 0 || !is_open_ || part.is_sent) {
    return;
  }
  const auto& of = shards_[server][parameter];
  const auto gradient = of.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided) {
    return;
  }
  const c10::NoGradGuard no_grad;
  if (!part.copy) {
    part.copy.emplace(std::vector<at::Tensor>{of}, Contents{kWhole});
  }
  part.copy->values(0).copy_(gradient);
  if (!senders_) {
    senders_ = std::make_unique<PartSenders>(links_);
  }
  senders_->send(server, parameter, *part.copy);
  part.is_sent = true;
}

std::unique_ptr<PartSenders> EarlyPush::stop() {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  for (auto& shard : parts_) {
    for (auto& part : shard) {
      part.is_sent = false;
    }
  }
  return std::move(senders_);
}

}  // namespace dp::detail
