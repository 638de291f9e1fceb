#include "launcher/base/line_splitter.h"

namespace launcher {

void LineSplitter::end_line(std::string_view rest,
                            LineEnd end,
                            const Consumer& consume) {
  is_in_progress_bar_ = false;
  if (partial_.empty()) {
    consume(rest, end);
    return;
  }
  partial_.append(rest);
  consume(partial_, end);
  partial_.clear();
}

void LineSplitter::keep(std::string_view rest, const Consumer& consume) {
  partial_.append(rest);
  while (partial_.size() > longest_) {
    consume(std::string_view(partial_).substr(0, longest_), LineEnd::cut);
    partial_.erase(0, longest_);
  }
}

void LineSplitter::feed(std::string_view bytes, const Consumer& consume) {
  while (!bytes.empty()) {
    if (returned_) {
      returned_ = false;
      const bool is_newline = bytes.front() == '\n';
      if (is_newline || !partial_.empty()) {
        end_line("",
                 is_newline ? LineEnd::newline : LineEnd::carriage_return,
                 consume);
      }
      is_in_progress_bar_ = !is_newline;
      bytes.remove_prefix(is_newline ? 1 : 0);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      keep(bytes, consume);
      return;
    }
    if (bytes[end] == '\r') {
      keep(bytes.substr(0, end), consume);
      returned_ = true;
    } else {
      end_line(bytes.substr(0, end), LineEnd::newline, consume);
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::finish(const Consumer& consume) {
  if (!partial_.empty()) {
    end_line("", LineEnd::cut, consume);
  }
  returned_ = false;
}

}  // namespace launcher
