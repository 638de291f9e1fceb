#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/state_dict.h"
#include "dp/servers/detail/resume_points.h"
#include "dp/servers/detail/shard.h"

namespace dp::detail {

/// Checkpoint file of one server, with the parameters of its shard and the
/// state of its optimizer. Python's torch.load reads the file as {'model':
/// {name: tensor}, 'optimizer': ..., 'step': updates, 'run': number of the
/// training}. The previous checkpoint is kept beside it, because servers that
/// are killed may not all have written the same checkpoint. Files of another
/// training are not kept.
class ServerFile {
 public:
  /// @param path  common path of all servers; a dot and the server's number are
  ///   appended.
  ServerFile(const std::string& path, int server);

  /// Writes a checkpoint.
  /// @param names  names of the shard's parameters.
  /// @throws c10::Error that names the file. Existing files remain then.
  void write(const std::vector<std::string>& names,
             const Shard& shard,
             int64_t updates,
             int64_t run);

  /// Reads the existing files. If the newest file is damaged, the previous one
  /// is used.
  /// @returns the resume points found. `problem` is set if files exist but none
  ///   could be read.
  ResumePoints read();
  /// Loads the state after `updates` updates, found by `read`, into the shard.
  /// @throws c10::Error if the state does not match the shard, which is
  ///   unchanged then.
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
  std::vector<State> states_;  // found by `read`; newest first
  /// Position of the last state known to belong to this training.
  enum class Last { nowhere, newest, before };
  Last last_ = Last::nowhere;
  bool is_newest_read_ = false;
};

}  // namespace dp::detail
