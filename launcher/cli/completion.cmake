# cmake -DDDPRUN=PROGRAM -DBASH=FILE -DZSH=FILE -P completion.cmake: writes what bash
# and zsh complete of a command line of ddprun. Both know its options by --help.
execute_process(COMMAND "${DDPRUN}" --help OUTPUT_VARIABLE help
                        COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n  -[^\n ]+( --[^\n ]+)*" lines "${help}")
string(REGEX MATCHALL "--?[a-z][a-z-]*" options "${lines}")
list(JOIN options " " options)
if(NOT options MATCHES "--nproc-per-node")
  message(FATAL_ERROR "expected options in the output of ${DDPRUN} --help, but "
                      "got ${help}")
endif()

file(
  WRITE "${BASH}"
  "# Completion of ddprun for bash, made of `ddprun --help`: options, and files
# where no option begins or readline's default stands for them.
_ddprun() {
  COMPREPLY=()
  [[ \${COMP_WORDS[COMP_CWORD]} != -* ]] ||
    mapfile -t COMPREPLY < <(compgen -W '${options}' -- \"\${COMP_WORDS[COMP_CWORD]}\")
}
complete -o default -F _ddprun ddprun
")
file(WRITE "${ZSH}" "#compdef ddprun\n# zsh reads the options of `ddprun --help`.\n_gnu_generic\n")
