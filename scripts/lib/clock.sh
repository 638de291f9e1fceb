# Sourced by the scripts: records the steps of a run, their results and times.

# Sets CPU_SECONDS to the CPU time of this shell's finished child processes,
# which fields 16 and 17 of its stat file count in ticks.
count_cpu_seconds() {
  local stat
  read -r stat </proc/self/stat
  read -r -a stat <<<"${stat##*) }"
  CPU_SECONDS="$(((stat[13] + stat[14]) / $(getconf CLK_TCK)))"
}

# timed NAME COMMAND ...: runs a step and records its exit status and duration.
timed() {
  local name="$1" start="$SECONDS" cpu status=0
  shift
  count_cpu_seconds
  cpu="$CPU_SECONDS"
  "$@" || status=$?
  count_cpu_seconds
  printf '%d %d %d %s\n' "$status" "$((SECONDS - start))" \
    "$((CPU_SECONDS - cpu))" "$name" >>"$DDP_STEPS"
  return "$status"
}

# not_run NAME: records a step that could not start.
not_run() {
  printf -- '- 0 0 %s\n' "$1" >>"$DDP_STEPS"
}

# Prints what the failed tests of a preset found wrong: failed assertions of
# Catch2 and unittest, and errors of the sanitizers.
print_failures() {
  local log="build/$1/Testing/Temporary/LastTest.log"
  [ ! -f "$log" ] ||
    awk '/^[0-9]+\/[0-9]+ Testing: / { text = "" } { text = text $0 "\n" }
         /^Test Failed\.$/ { printf "%s", text }' "$log" |
    grep -E -A6 ': FAILED:$|^(FAIL|ERROR): |Sanitizer: ' | head -n 60 || true
}

# Prints a line for each step. Below a failed "PRESET: tests" prints its failed
# tests and what they found wrong.
print_steps() {
  [ -s "$DDP_STEPS" ] || return 0
  say "the steps (./scripts/times shows the slowest files and tests)"
  printf '%8s %8s %8s  %s\n' "result" "seconds" "CPU s" "step"
  local status wall cpu name word preset
  while read -r status wall cpu name; do
    case "$status" in
      0) word="ok" ;;
      -) word="not run" ;;
      *) word="FAILED" ;;
    esac
    printf '%8s %8d %8d  %s\n' "$word" "$wall" "$cpu" "$name"
    preset="${name%: tests}"
    if [ "$word" = FAILED ] && [ "$preset" != "$name" ]; then
      sed 's/^[0-9]*:/                              /' \
        "build/$preset/Testing/Temporary/LastTestsFailed.log" 2>/dev/null || true
      print_failures "$preset"
    fi
  done <"$DDP_STEPS"
  count_cpu_seconds
  printf '%8s %8d %8d  all of it\n' "" "$SECONDS" "$CPU_SECONDS"
  if [ -s "$DDP_DOWNLOADS" ]; then
    awk '{ sum += $1 } END { printf "%8s %8d %8s  of these, downloads\n", "", sum, "" }' \
      "$DDP_DOWNLOADS"
  fi
}

# Starts to record steps and downloads. The table is printed when the script
# exits.
start_clock() {
  DDP_STEPS="$(mktemp)"
  DDP_DOWNLOADS="$(mktemp)"
  export DDP_DOWNLOADS
  trap 'print_steps; rm -f "$DDP_STEPS" "$DDP_DOWNLOADS"' EXIT
}
