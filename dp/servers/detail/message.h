#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dp::detail {

/// Operation of a message.
enum class Op : int64_t {
  // sent by a worker
  pull,   ///< requests parameters
  push,   ///< gradients follow
  drop,   ///< no push for the parameters taken last; no answer
  leave,  ///< no further push; no answer
  last,   ///< requests the final parameters after `leave`
  // sent by a server
  parameters,  ///< a piece of the parameters follows
  received,    ///< the gradients of a push have arrived
  // sent by both
  wait,     ///< sign of life: the sender waits, or prepares its answer
  failure,  ///< the job has ended; the text says why
};

/// The fixed part of a message.
struct Message {
  Op op = Op::wait;
  int64_t version = 0;                                     ///< with parameters
  double loss = std::numeric_limits<double>::quiet_NaN();  ///< with a push
  std::string text = "";                                   ///< with a failure
  /// With a push: which parameters have a gradient, see `Presence`.
  std::vector<int64_t> numbers = {};
};

/// Header of fixed size at the start of a message. It contains the lengths of
/// the text and of the numbers.
struct Header {
  Message message;         ///< without text and numbers
  int64_t text_bytes = 0;  ///< bytes of the text that follows
  int64_t numbers = 0;     ///< count of the numbers that follow the text
};

/// Maximum length of a text in bytes. A longer text is truncated before it is
/// sent.
constexpr int64_t kMaxTextBytes = 1 << 16;
constexpr int64_t kMaxNumbers = 1 << 24;

/// Size of the pieces in which a payload is sent. The time-out applies to each
/// piece. Parameters are sent with a message for each piece.
constexpr int64_t kPieceBytes = 4 << 20;
/// Splits a payload into pieces. Returns no pieces for an undefined or empty
/// payload.
std::vector<at::Tensor> pieces_of(const at::Tensor& payload);

/// Returns memory for a header.
at::Tensor empty_header();
at::Tensor encode_header(const Message& message);
/// @throws c10::Error if the header belongs to another version of the protocol
///   or contains an invalid value.
Header decode_header(const at::Tensor& header);

/// Convert a text to its wire format and back.
at::Tensor encode_text(const std::string& text);
std::string decode_text(const at::Tensor& bytes);

}  // namespace dp::detail
