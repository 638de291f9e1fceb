#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dp::detail {

/// What a message is about.
enum class Op : int64_t {
  // from a worker
  pull,   ///< wants parameters
  push,   ///< gradients follow
  drop,   ///< makes no push of what it took last; no answer
  leave,  ///< pushes no more; no answer
  last,   ///< has left and wants the last parameters
  // from a server
  parameters,  ///< a piece of the parameters follows
  received,    ///< the gradients of a push have arrived
  // from either
  wait,     ///< still there: the answer takes longer, or that of another server
  failure,  ///< the job has ended; the text says why
};

/// The fixed part of a message.
struct Message {
  Op op = Op::wait;
  int64_t version = 0;                                     ///< with parameters
  double loss = std::numeric_limits<double>::quiet_NaN();  ///< with a push
  std::string text = "";                                   ///< with a failure
  /// With a push, which parameters have a gradient: see `Presence`.
  std::vector<int64_t> numbers = {};
};

/// A message begins with a header of one size, which says how long the rest is.
/// Pure.
struct Header {
  Message message;         ///< without its text and numbers
  int64_t text_bytes = 0;  ///< of the text that follows
  int64_t numbers = 0;     ///< that follow the text
};

/// The most bytes of a text; what is longer is cut off before it is sent.
constexpr int64_t kMaxTextBytes = 1 << 16;
constexpr int64_t kMaxNumbers = 1 << 24;

/// A payload travels in pieces of so many bytes, each in the time-out for
/// itself: parameters with a message for each piece.
constexpr int64_t kPieceBytes = 4 << 20;
/// None of a payload that is undefined or empty.
std::vector<at::Tensor> pieces_of(const at::Tensor& payload);

/// Memory for a header.
at::Tensor empty_header();
at::Tensor encode_header(const Message& message);
/// @throws c10::Error when it is not the header of this version's messages, or
///   says what none of them says.
Header decode_header(const at::Tensor& header);

/// The text as it is sent, and back.
at::Tensor encode_text(const std::string& text);
std::string decode_text(const at::Tensor& bytes);

}  // namespace dp::detail
