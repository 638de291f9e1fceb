# A worker of a stress job. It reports on descriptor 8, which all processes of
# the job hold, and ends with 0 when descriptor 9 is closed. Its arguments are
# habits. SIGUSR1 makes it fail, SIGUSR2 makes it end early, and SIGALRM makes
# it fill the memory.
tell() { echo "$1 $RANK $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $$ $PPID $GROUP_RANK $MASTER_PORT" >&8; }
# Runs forever, ignores SIGTERM and holds stdout.
linger() { (trap '' TERM INT HUP QUIT; exec "$@" sleep 1000) & }

trap 'echo "{\"message\": \"it was told to\"}" >"$TORCHELASTIC_ERROR_FILE"; exit 3' USR1
trap 'exit 0' USR2
trap 'all=0123456789abcdef; while :; do all=$all$all; done' ALRM
tell started
for habit; do
  case $habit in
    deaf) trap '' TERM INT HUP QUIT ;;
    child) sleep 1000 & ;;
    group) linger ;;
    daemon) linger setsid ;;
    hidden) linger env -i setsid ;;
    fail) exit 3 ;;
    *) exit 64 ;;
  esac
done
tell ready
read -r _ <&9
tell done
exit 0
