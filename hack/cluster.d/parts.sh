# shellcheck shell=bash
# What every profile shares: the parts are started in their order and stopped in the reverse one. A profile defines
# PARTS, PORTS, SUSPENDED (for slow.sh), answers, run_PART, start_part, end_part, prepare,
# before_stop and after_stop.

# PART...: print the named parts, or all, in starting order.
parts() {
  local part name
  for name in "$@"; do
    [[ " ${PARTS[*]} " == *" $name "* ]] || die "unknown part '$name'; the parts are: ${PARTS[*]}"
  done
  for part in "${PARTS[@]}"; do
    if [ $# = 0 ] || [[ " $* " == *" $part "* ]]; then echo "$part"; fi
  done
}

cmd_start() {
  local part chosen
  chosen=$(parts "$@")
  prepare "$@"
  for part in $chosen; do start_part "$part"; done
  if [ $# = 0 ]; then step "$LOG/controller-manager.log" "default service account" wait_for_service_account; fi
  if [ $# = 0 ]; then start_slow "${SUSPENDED[@]}"; fi
}

cmd_stop() {
  local part chosen
  mkdir -p "$LOG" "$STATE/run"
  if [ $# = 0 ]; then
    before_stop
    stop_slow
    resume
  fi
  chosen=$(parts "$@")
  for part in $(tac <<<"$chosen"); do
    if mine "$part"; then
      step "$LOG/stop.log" "stop $part" end_part "$part"
    elif [ $# != 0 ]; then
      say "$part: not running, or not started by hack/cluster"
    fi
    if [ $# = 0 ]; then after_stop "$part"; fi
  done
}

# A test that was killed may have left parts suspended, and others would wait for their answers.
resume() {
  local part pid
  for part in "${PARTS[@]}"; do
    if pid=$(pid_of "$part"); then kill -CONT "$pid" || true; fi
  done
}

cmd_status() {
  local part pid since answer
  printf '%-20s %-8s %-20s %s\n' PART PID SINCE ANSWERS
  for part in "${PARTS[@]}"; do
    pid=- since=- answer=no
    if mine "$part"; then pid=$(pid_of "$part") since=$(started "$part" '+%F %T'); fi
    if answers "$part"; then answer=yes; fi
    [ "$pid$answer" != -yes ] || pid="not ours"
    printf '%-20s %-8s %-20s %s\n' "$part" "$pid" "$since" "$answer"
  done
}

cmd_kubectl() {
  [ -e "$ADMIN" ] || die "no cluster in $STATE: run hack/cluster start"
  exec kubectl --kubeconfig "$ADMIN" "$@"
}

# PART FORMAT: when its process started
started() {
  local part=$1
  shift
  date -d "-$(ps -o etimes= -p "$(pid_of "$part")") seconds" "$@"
}

admin() { kubectl --kubeconfig "$ADMIN" --request-timeout=5s "$@"; }

healthz() { curl -sfk --noproxy '*' --max-time 5 "$1"; }

# PART: start it if it does not run, and wait until it answers
bring_up() {
  local part=$1 port owner end=$((SECONDS + TIMEOUT))
  if ! mine "$part"; then
    for port in ${PORTS[$part]}; do
      owner=$(ss -ltnHp "sport = :$port")
      [ -z "$owner" ] || die "port $port, which $part needs, is in use: $(tr -s ' ' <<<"$owner")"
    done
    "run_${part//-/_}"
  fi
  until answers "$part"; do
    if [ "$part" = kubelet ] && answers apiserver; then give_pod_cidr; fi
    mine "$part" || die "$part exited: see the lines above"
    ((SECONDS < end)) || die "$part did not answer within $TIMEOUT s"
    sleep 0.3
  done
}

node_ip() {
  local ip=${CLUSTER_NODE_IP:-}
  [ -n "$ip" ] || ip=$(ip -4 -o addr show scope global |
    awk '$2 !~ /^(docker|cbr|cni|nodeleak|br-|veth|virbr)/ {sub("/.*", "", $4); print $4; exit}')
  [ -n "$ip" ] || die "no address for the node found (loopback is not possible): set CLUSTER_NODE_IP"
  printf '%s\n' "$ip"
}

pod_cidr() { admin get node "$NODE" --ignore-not-found -o jsonpath='{.spec.podCIDR}'; }

# No controller assigns pod CIDRs here, so this sets one as soon as the kubelet has registered the node.
# (Creating the node first would be simpler, but a 1.20 kubelet panics on a node without a status.)
give_pod_cidr() {
  local cidr=${CLUSTER_CIDR:-$POD_CIDR}
  [ -n "$(admin get node "$NODE" --ignore-not-found -o name)" ] && [ -z "$(pod_cidr)" ] || return 0
  admin patch node "$NODE" -p "{\"spec\": {\"podCIDR\": \"$cidr\", \"podCIDRs\": [\"$cidr\"]}}"
}

# DIR...: unmount everything at and below these directories
unmount() {
  local dir
  for dir in "$@"; do
    awk -v dir="$dir" '$2 == dir || index($2, dir "/") == 1 {print $2}' /proc/self/mounts | tac | xargs -r -n1 umount -l
  done
}

# Does the kernel refuse to lower oom_score_adj even for root? (no CAP_SYS_RESOURCE)
oom_score_refused() { ! (echo -998 >/proc/self/oom_score_adj) 2>/dev/null; }

# Ready, with a heartbeat since the kubelet's start: the status of an earlier kubelet stays for 40 s after its end
node_ready() {
  local status heartbeat
  read -r status heartbeat < <(admin get node "$NODE" -o \
    jsonpath='{range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{"\n"}{end}')
  [ "$status" = True ] && [ -n "$(pod_cidr)" ] || return 1 # which give_pod_cidr gives it, perhaps later
  ! mine kubelet || [[ ! $heartbeat < $(started kubelet -u +%FT%TZ) ]]
}
