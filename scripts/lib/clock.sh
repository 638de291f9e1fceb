# Sourced by the scripts: where the time goes.

DDP_TIMES=()

# Sets CPU_SECONDS: those of the processes that have ended below this shell. A
# subshell would count its own.
count_cpu_seconds() {
  times >"$DDP_CPU"
  CPU_SECONDS="$(awk 'NR == 2 {
    for (i = 1; i <= 2; ++i) { split($i, t, /[ms]/); sum += t[1] * 60 + t[2] }
    printf "%d\n", sum }' "$DDP_CPU")"
}

# timed NAME COMMAND ...: runs it and notes what it took.
timed() {
  local name="$1" start="$SECONDS" cpu status=0
  shift
  count_cpu_seconds
  cpu="$CPU_SECONDS"
  "$@" || status=$?
  count_cpu_seconds
  DDP_TIMES+=("$((SECONDS - start)) $((CPU_SECONDS - cpu)) $name")
  return "$status"
}

print_times() {
  [ "${#DDP_TIMES[@]}" -gt 0 ] || return 0
  say "where the time went (./scripts/times shows the slowest files and tests)"
  printf '%10s %10s\n' "seconds" "CPU s"
  printf '%s\n' "${DDP_TIMES[@]}" | awk '
    { wall += $1; cpu += $2
      rest = $0; sub(/^[0-9]+ [0-9]+ /, "", rest)
      printf "%10d %10d  %s\n", $1, $2, rest }
    END { printf "%10d %10d  all of it\n", wall, cpu }'
  if [ -s "$DDP_DOWNLOADS" ]; then
    awk '{ sum += $1 } END { printf "%10d %10s  of these, downloads\n", sum, "" }' \
      "$DDP_DOWNLOADS"
  fi
}

# From here on downloads are counted, and the table comes at the end.
start_clock() {
  DDP_DOWNLOADS="$(mktemp)"
  DDP_CPU="$(mktemp)"
  export DDP_DOWNLOADS
  trap 'print_times; rm -f "$DDP_DOWNLOADS" "$DDP_CPU"' EXIT
}
