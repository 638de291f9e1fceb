#include "launcher/plan/program.h"

#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/base/error.h"

namespace launcher {
namespace {

enum class FileState { missing, folder, not_executable, executable };

FileState look_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return FileState::missing;
  }
  if (S_ISDIR(status.st_mode)) {
    return FileState::folder;
  }
  if (!S_ISREG(status.st_mode) || ::access(path.c_str(), X_OK) != 0) {
    return FileState::not_executable;
  }
  return FileState::executable;
}

[[noreturn]] void not_executable(const std::string& path) {
  throw LaunchError(kExitNotExecutable,
                    "expected an executable program, but " + path +
                        " is none; make it one with chmod +x, or name another");
}

// A name with a slash is a path; other names are searched in PATH.
std::string find_executable(const std::string& name,
                            const Environment& environment) {
  if (name.find('/') != std::string::npos) {
    switch (look_at(name)) {
      case FileState::executable:
        return name;
      case FileState::folder:
        throw LaunchError(
            kExitNotExecutable,
            "expected a program, but " + name + " is a folder; name a file");
      case FileState::not_executable:
        not_executable(name);
      case FileState::missing:
        throw LaunchError(
            kExitNotFound,
            "program " + name + " does not exist; check the path");
    }
  }
  const std::string* variable = find_variable(environment, "PATH");
  const std::string path = variable != nullptr ? *variable : "/bin:/usr/bin";
  std::string refused;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, end - begin);
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    const FileState state = look_at(file);
    if (state == FileState::executable) {
      return file;
    }
    if (state == FileState::not_executable && refused.empty()) {
      refused = file;
    }
    begin = end + 1;
  }
  if (!refused.empty()) {
    not_executable(refused);
  }
  const FileState here = look_at(name);
  const bool is_here =
      here == FileState::executable || here == FileState::not_executable;
  throw LaunchError(kExitNotFound,
                    "program " + name + " is in no folder of PATH; " +
                        (is_here ? "did you mean ./" + name + "?"
                                 : "check the name, or give its path"));
}

bool ends_in_py(const std::string& name) {
  return name.size() > 3 && name.compare(name.size() - 3, 3, ".py") == 0;
}

/// Returns the python3 beside ddprun, else its name. In a folder of PATH, of
/// /usr/local/bin for example, the order of PATH decides, unless the folder is
/// of a virtual environment.
std::string own_python(const Environment& environment) {
  const std::string own = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  const std::string folder = own.substr(0, own.rfind('/') + 1);
  const std::string* path = find_variable(environment, "PATH");
  const bool is_in_path =
      path != nullptr &&
      (":" + *path + ":")
              .find(":" + folder.substr(0, folder.size() - 1) + ":") !=
          std::string::npos;
  const bool is_environment =
      look_at(folder + "../pyvenv.cfg") != FileState::missing;
  const std::string python = folder + "python3";
  return (is_environment || !is_in_path) &&
                 look_at(python) == FileState::executable
             ? python
             : "python3";
}

Program python(std::vector<std::string> arguments,
               const Environment& environment) {
  const std::string* chosen = find_variable(environment, "PYTHON_EXEC");
  const bool is_chosen = chosen != nullptr && !chosen->empty();
  const std::string name = is_chosen ? *chosen : own_python(environment);
  arguments.insert(arguments.begin(), {name, "-u"});
  try {
    return {find_executable(name, environment), std::move(arguments)};
  } catch (const LaunchError& error) {
    throw LaunchError(
        error.exit_code(),
        is_chosen ? "PYTHON_EXEC: " + std::string(error.what())
                  : error.what() + std::string(" (PYTHON_EXEC names another)"));
  }
}

}  // namespace

Program find_program(const LaunchOptions& options,
                     const Environment& environment) {
  std::vector<std::string> arguments = options.program;
  const std::string name = arguments.front();
  if (options.program_kind == ProgramKind::module) {
    arguments.insert(arguments.begin(), "-m");
    return python(std::move(arguments), environment);
  }
  const bool by_python =
      options.program_kind == ProgramKind::python ||
      (options.program_kind == ProgramKind::by_name && ends_in_py(name));
  if (!by_python) {
    return {find_executable(name, environment), std::move(arguments)};
  }
  if (::access(name.c_str(), R_OK) != 0) {
    throw LaunchError(kExitNotFound,
                      "program " + name +
                          " does not exist or cannot be read; "
                          "check the path");
  }
  if (name.front() == '-') {
    arguments.front() = "./" + name;  // else Python would parse it as an option
  }
  return python(std::move(arguments), environment);
}

}  // namespace launcher
