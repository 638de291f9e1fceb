#include "dp/detail/parameter_server/packet.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace dp::detail {
namespace {

bool is_rows(int64_t content) {
  return content >= 0;
}

bool travels(int64_t content) {
  return content != kNone && content != kKept;
}

std::vector<FlatTensors::Piece> pieces_of(const std::vector<at::Tensor>& like,
                                          const Contents& contents) {
  std::vector<FlatTensors::Piece> pieces;
  for (size_t i = 0; i < like.size(); ++i) {
    if (!travels(contents[i])) {
      continue;
    }
    auto sizes = like[i].sizes().vec();
    if (is_rows(contents[i])) {
      pieces.push_back({at::kLong, {contents[i]}});
      sizes[0] = contents[i];
    }
    pieces.push_back({like[i].scalar_type(), std::move(sizes)});
  }
  return pieces;
}

}  // namespace

std::string contents_problem(const std::vector<at::Tensor>& like,
                             const Contents& contents) {
  if (contents.size() != like.size()) {
    return c10::str(
        "parts of ", contents.size(), " tensors, not of ", like.size());
  }
  for (size_t i = 0; i < like.size(); ++i) {
    const int64_t rows = like[i].dim() > 0 ? like[i].size(0) : -1;
    if (contents[i] < kKept || contents[i] > std::max<int64_t>(rows, kNone)) {
      return c10::str(
          contents[i], " rows of a tensor of shape ", like[i].sizes());
    }
  }
  return "";
}

Packet::Packet(const std::vector<at::Tensor>& like,
               Contents contents,
               const at::Tensor& memory)
    : contents_(std::move(contents)),
      memory_(pieces_of(like, contents_), memory) {
  size_t piece = 0;
  for (const int64_t content : contents_) {
    first_piece_.push_back(piece);
    piece += !travels(content) ? 0 : is_rows(content) ? 2 : 1;
  }
}

at::Tensor Packet::values(size_t tensor) const {
  if (!travels(contents_[tensor])) {
    return at::Tensor();
  }
  return memory_
      .pieces()[first_piece_[tensor] + (is_rows(contents_[tensor]) ? 1 : 0)];
}

at::Tensor Packet::rows(size_t tensor) const {
  return is_rows(contents_[tensor]) ? memory_.pieces()[first_piece_[tensor]]
                                    : at::Tensor();
}

Rows Packet::all_rows() const {
  Rows result;
  for (size_t i = 0; i < contents_.size(); ++i) {
    result.push_back(rows(i));
  }
  return result;
}

bool any_rows(const Rows& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const at::Tensor& some) {
    return some.defined();
  });
}

Contents contents_of(const Rows& rows) {
  Contents contents;
  for (const auto& some : rows) {
    contents.push_back(some.defined() ? some.numel() : kWhole);
  }
  return contents;
}

at::Tensor join_rows(const Rows& rows) {
  std::vector<at::Tensor> defined;
  for (const auto& some : rows) {
    if (some.defined()) {
      defined.push_back(some);
    }
  }
  return at::cat(defined);
}

Rows split_rows(const at::Tensor& flat, const Contents& contents) {
  Rows rows;
  int64_t begin = 0;
  for (const int64_t content : contents) {
    const int64_t count = std::max<int64_t>(content, 0);
    rows.push_back(is_rows(content) ? flat.narrow(0, begin, count)
                                    : at::Tensor());
    begin += count;
  }
  return rows;
}

int64_t row_count(const Contents& contents) {
  int64_t count = 0;
  for (const int64_t content : contents) {
    count += std::max<int64_t>(content, 0);
  }
  return count;
}

void check_rows(const Rows& rows, const std::vector<at::Tensor>& like) {
  for (size_t i = 0; i < like.size(); ++i) {
    if (rows[i].defined() && rows[i].numel() > 0) {
      const auto [least, most] = at::aminmax(rows[i]);
      TORCH_CHECK(
          least.item<int64_t>() >= 0 && most.item<int64_t>() < like[i].size(0),
          "Expected rows of a parameter of shape ",
          like[i].sizes(),
          ", but got rows ",
          least.item<int64_t>(),
          " to ",
          most.item<int64_t>());
    }
  }
}

void copy_parts(const std::vector<at::Tensor>& from,
                const Rows& rows,
                Packet& to) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    auto values = to.values(i);
    if (rows[i].defined()) {
      to.rows(i).copy_(rows[i]);
      at::index_select_out(values, from[i].detach(), 0, rows[i]);
    } else {
      values.copy_(from[i]);
    }
  }
}

void copy_parts(const Packet& from, const std::vector<at::Tensor>& to) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) {
    auto target = to[i].detach();
    if (const auto rows = from.rows(i); rows.defined()) {
      target.index_copy_(
          0, rows.to(target.device()), from.values(i).to(target.device()));
    } else if (const auto values = from.values(i); values.defined()) {
      target.copy_(values);
    }
  }
}

}  // namespace dp::detail
