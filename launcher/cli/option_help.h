#pragma once

namespace CLI {
class App;
}

namespace launcher {

/// Gives the command line its description, its examples, --help and --version.
void set_help(CLI::App& app);

}  // namespace launcher
