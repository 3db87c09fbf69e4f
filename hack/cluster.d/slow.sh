# shellcheck shell=bash
# CLUSTER_SLOW=SEED: a node that is slower than it should be, at random moments, so that what takes
# an order or a time for granted fails there. Its CNI plugins wait before and after they work, and
# its kubelet and its runtime stand still now and then.

SLOW_LOCK=/run/nodeleak-cluster-slow.lock # tests hold it while they suspend a part themselves

# FROM TO: fill a directory with plugins that wait around those of another one (or of the same)
slow_plugins() {
  local plugin
  mkdir -p "$2/.real"
  for plugin in "$1"/*; do
    [ ! -e "$2/.real/${plugin##*/}" ] || continue
    cp "$plugin" "$2/.real/"
    slow_plugin "${plugin##*/}" >"$2/.new"
    chmod 755 "$2/.new"
    mv "$2/.new" "$2/${plugin##*/}"
  done
}

# NAME: the real plugin ends with this one, which a runtime may kill
slow_plugin() {
  cat <<END
#!/bin/bash
RANDOM=\$(($CLUSTER_SLOW * 7919 + \$\$))
pause() {
  local ms=0
  if ((RANDOM % 2)); then ms=\$((RANDOM % 800)); fi
  if ((RANDOM % 20 == 0)); then ms=\$((1000 + RANDOM % 2500)); fi
  sleep "\$((ms / 1000)).\$(printf %03d \$((ms % 1000)))" </dev/null
}
pause
setpriv --pdeathsig=KILL "\${0%/*}/.real/$1"
code=\$?
pause
exit \$code
END
}

# UNIT...: run beside the parts; suspend one of these for up to two seconds now and then
start_slow() {
  if [ -n "${CLUSTER_SLOW-}" ] && ! recorded "slow-$PROFILE" >/dev/null; then
    spawn "slow-$PROFILE" "$HERE/../cluster" stand-still "--profile=$PROFILE" "$@" \
      >>"$LOG/slow.log" 2>&1
  fi
}

stop_slow() { halt "slow-$PROFILE"; }

cmd_stand-still() {
  local pid seconds
  RANDOM=$CLUSTER_SLOW
  exec 8>>"$SLOW_LOCK"
  while true; do
    trap - INT TERM
    sleep $((2 + RANDOM % 15))
    seconds=$((RANDOM % 2)).$((RANDOM % 10))
    set -- "${@:2}" "$1"
    flock 8
    if pid=$(pid_of "$1") && [ "$(ps -o state= -p "$pid")" != T ]; then
      echo "$(date +%T) $1 (pid $pid) stands still for $seconds s"
      # shellcheck disable=SC2064
      trap "kill -CONT $pid; exit 143" INT TERM
      kill -STOP "$pid" && sleep "$seconds"
      kill -CONT "$pid" || true
    fi
    flock --unlock 8
  done
}
