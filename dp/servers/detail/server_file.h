#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/state_dict.h"
#include "dp/servers/detail/resume_points.h"
#include "dp/servers/detail/shard.h"

namespace dp::detail {

/// The file in which a server keeps its parameters and what its optimizer knows
/// of them: {'model': {name: tensor}, 'optimizer': ..., 'step': updates, 'run':
/// number of the training}, as Python's torch.load gives it. The file of the
/// checkpoint before is kept beside it, since servers that are killed have not
/// all written the same one. Files of another training are not kept.
class ServerFile {
 public:
  /// @param path  of all servers; each has its number behind it.
  ServerFile(const std::string& path, int server);

  /// @param names  of the parameters of the shard.
  /// @throws c10::Error that names the file; those that were there still are.
  void write(const std::vector<std::string>& names,
             const Shard& shard,
             int64_t updates,
             int64_t run);

  /// Reads the files that are there. A newest file that is damaged is left
  /// aside where there is one before.
  ResumePoints read();
  /// Puts in place what `read` found of that update.
  /// @throws c10::Error when it does not fit; changes nothing then.
  void restore(int64_t updates,
               const std::vector<std::string>& names,
               Shard& shard);

 private:
  struct State {
    int64_t updates;
    int64_t run;
    ddp::StateDict parameters;
    c10::IValue optimizer;
  };
  State read_file(const std::string& path) const;

  std::string path_;
  std::vector<State> states_;  // the newest first
  /// Where the last state that this training is sure of lies.
  enum class Last { nowhere, newest, before };
  Last last_ = Last::nowhere;
  bool is_newest_read_ = false;
};

}  // namespace dp::detail
