# shellcheck shell=bash
# Steps with a log and progress lines, and recorded processes, so that only processes started here are ever stopped.

say() { printf '%s\n' "$*"; }
die() {
  printf 'cluster: %s\n' "$*" >&2
  exit 1
}

# LOG LABEL COMMAND...: run COMMAND with its output in LOG; print one line every 20 s and one at the end.
# Never call it in a condition: that disables errexit in COMMAND.
step() {
  local log=$1 label=$2 began=$SECONDS next=20 offset rc=0
  shift 2
  mkdir -p "${log%/*}"
  printf -- '--- %s  %s\n' "$(date '+%F %T')" "$label" >>"$log"
  offset=$(stat -c %s "$log")
  set -m # its own process group, so that all of it can be interrupted
  (
    set +m -E
    trap 'echo "failed ($?): $BASH_COMMAND"' ERR
    "$@"
  ) >>"$log" 2>&1 </dev/null &
  STEP_PID=$! STEP_LABEL=$label
  set +m
  while kill -0 "$STEP_PID" 2>/dev/null; do
    sleep 0.1
    if ((SECONDS - began >= next)); then
      say "$label: still running after $((SECONDS - began)) s ($log)"
      next=$((next + 20))
    fi
  done
  wait "$STEP_PID" || rc=$?
  STEP_PID=
  if [ "$rc" != 0 ]; then
    say "$label: FAILED after $((SECONDS - began)) s. Last lines of $log:"
    tail -c "+$((offset + 1))" "$log" | tail -n 25 | sed 's/^/    /'
    exit 1
  fi
  say "$label: done, $((SECONDS - began)) s"
}

interrupted() {
  trap '' INT TERM
  if [ -n "${STEP_PID-}" ]; then
    kill -TERM -- "-$STEP_PID" 2>/dev/null || true
    say "interrupted during: $STEP_LABEL"
  fi
  [ "$COMMAND" != start ] || say "started parts keep running: see hack/cluster status, hack/cluster stop"
  [ "$1" = INT ] && exit 130
  exit 143
}

# LOG: rotate it above 50 MB
rotate() {
  if [ "$(stat -c %s "$1" 2>/dev/null || echo 0)" -gt 50000000 ]; then mv "$1" "$1.1"; fi
}

# PID: print start time and boot id, which identify the process across pid reuse and reboots; fail if it is gone
identity() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  read -ra stat <<<"${stat##*) }" # from the third field on
  [[ ${stat[0]} != [ZX] ]] || return 1
  printf '%s %s\n' "${stat[19]}" "$(</proc/sys/kernel/random/boot_id)"
}

# PART COMMAND...: run COMMAND in its own session. The process records itself before exec, so that an interrupt cannot
# lose it. It gets no proxy variables: all parts are local. It inherits none of the caller's files: a lock among them
# would be held while the part runs.
spawn() {
  local record=$STATE/run/$1
  shift
  rm -f "$record"
  # shellcheck disable=SC2016
  env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY setsid bash -c '
    . "$0"
    record=$1; shift
    for file in /proc/$$/fd/*; do ((${file##*/} <= 2)) || eval "exec ${file##*/}>&-"; done
    printf "%s %s\n" $$ "$(identity $$)" >"$record.new" && mv "$record.new" "$record"
    exec "$@"' "$HERE/lib.sh" "$record" "$@" &
  until [ -e "$record" ]; do sleep 0.05; done
}

# PART: print the pid of the recorded process if it still runs
recorded() {
  local pid identity
  [ -e "$STATE/run/$1" ] && read -r pid identity <"$STATE/run/$1" && [ "$(identity "$pid")" = "$identity" ] && echo "$pid"
}

# A profile may know its processes otherwise.
pid_of() { recorded "$1"; }

# PART: does its process run?
mine() { pid_of "$1" >/dev/null; }

# PART: terminate the recorded process
halt() {
  local part=$1 pid i grace=15
  [ "$part" != apiserver ] || grace=3 # it would wait for all watches to end
  if mine "$part"; then
    pid=$(pid_of "$part")
    kill -TERM "$pid"
    kill -CONT "$pid"
    for ((i = 0; i < grace * 10; i++)); do
      mine "$part" || break
      sleep 0.1
    done
    if mine "$part"; then
      echo "$part (pid $pid) still runs $grace s after SIGTERM: SIGKILL"
      kill -KILL "$pid"
      while mine "$part"; do sleep 0.1; done
    fi
  fi
  rm -f "$STATE/run/$part"
}

# DIRECTORY: remove it. An interrupted removal leaves nothing of it under its name.
discard() {
  local gone=${1%/*}/.gone-${1##*/}
  rm -rf --one-file-system "$gone"
  [ ! -e "$1" ] || mv "$1" "$gone"
  rm -rf --one-file-system "$gone"
}
