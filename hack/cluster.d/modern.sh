# shellcheck shell=bash
# The profiles containerd, crio, cri-dockerd and k3s: a Kubernetes of today. One control plane serves their nodes, each of
# which has mount, PID, network and host name namespaces of its own, so that every path and port is that of a real node.

STATE=$STATE/$MINOR
LOG=$STATE/log
ADMIN=$STATE/admin.conf
BRIDGE=nodeleak0 # joins the nodes and the machine
API_ADDRESS=10.254.0.1 API_BIND=0.0.0.0 SERVICE_NET=10.97.0
NODE=nodeleak-$PROFILE
NODE_STATE=$STATE/$PROFILE
KUBERNETES=$(built kubernetes)
PATH=$KUBERNETES:$(built etcd):$PATH
PACKAGES=(iptables iproute2 conntrack socat ethtool ebtables busybox-static jq curl procps openssl gcc libc6-dev)
CONTROL_PLANE=(etcd apiserver controller-manager scheduler)
declare -gA PORTS=([etcd]="2479 2480" [apiserver]=6445 [controller-manager]=10357 [scheduler]=10359 [node]="")
declare -gA EXTRA_FLAGS=([controller-manager]="--controllers=*,-node-ipam-controller" [scheduler]="")

# shellcheck source=node.sh
. "$HERE/node.sh"
# shellcheck source=/dev/null
. "$HERE/runtime-$PROFILE.sh"

NODE_PATH=$RUNTIME_PROGRAMS:$NODE_PATH
UNITS=("${RUNTIME[@]}" kubelet)
PARTS=("${CONTROL_PLANE[@]}" node "${UNITS[@]}")
SUSPENDED=("${UNITS[@]}")

is_unit() { [[ " ${UNITS[*]} " == *" $1 "* ]]; }

pid_of() {
  if [ "$1" = node ]; then
    node_pid "$PROFILE"
  elif is_unit "$1"; then
    unit_pid "$1"
  else
    recorded "$1"
  fi
}

# PART: does it answer?
answers() {
  case "$1" in
    node) mine node ;;
    kubelet) inside curl -sf --max-time 5 http://127.0.0.1:10248/healthz && node_ready ;;
    *) if is_unit "$1"; then runtime_answers "$1"; else control_plane_answers "$1"; fi ;;
  esac >/dev/null 2>&1
}

prepare() {
  local missing
  missing=$(missing_builds; missing_packages)
  [ -z "$missing" ] || die "missing: ${missing//$'\n'/ }; run hack/cluster build --profile=$PROFILE first"
  mkdir -p "$STATE/run" "$LOG" && chmod 700 "$STATE"
  [ -d "$STATE/pki" ] || step "$LOG/pki.log" "certificates and kubeconfigs" make_pki
}

start_part() {
  local part=$1 log=$LOG/$1.log
  [[ " ${CONTROL_PLANE[*]} " == *" $part "* ]] || log=$LOG/$PROFILE.log
  if mine "$part" && answers "$part"; then
    say "$part: already running"
  else
    mine "$part" || rotate "$log"
    step "$log" "$part" bring_up_part "$part"
  fi
}

bring_up_part() {
  if is_unit "$1"; then
    bring_up_unit "$1"
  else
    bring_up "$1"
  fi
}

end_part() {
  if [ "$1" = node ]; then
    end_node
  elif is_unit "$1"; then
    hold "$1"
  else
    halt "$1"
  fi
}

# Print the other profiles that have a node, running or stopped, also those that this checkout does
# not know.
other_profiles() {
  local units profile
  for units in "$STATE"/*/units; do
    profile=$(basename "${units%/units}")
    if [ -d "$units" ] && [ "$profile" != "$PROFILE" ]; then echo "$profile"; fi
  done
}

# Print those whose node runs.
other_nodes() {
  local profile
  for profile in $(other_profiles); do
    if node_pid "$profile" >/dev/null; then echo "$profile"; fi
  done
}

before_stop() {
  local others
  others=$(other_nodes)
  if [ -n "$others" ]; then
    say "the control plane is left running for other nodes: ${others//$'\n'/ }"
    PARTS=(node "${UNITS[@]}")
  fi
}

after_stop() { :; }

cmd_reboot() {
  mine node || die "the node is not running: hack/cluster start --profile=$PROFILE"
  step "$LOG/$PROFILE.log" "end every process of the node" end_node
  cmd_start
}

cmd_leak() {
  local how=wipe
  case "${1-}" in
    '') ;;
    --how=wipe | --how=ghosts | --how=records) how=${1#--how=} ;;
    *) die "usage: hack/cluster leak [--how=wipe|ghosts|records] --profile=$PROFILE" ;;
  esac
  mine kubelet || die "the kubelet is not running: hack/cluster start --profile=$PROFILE"
  step "$LOG/$PROFILE.log" "stop kubelet" hold kubelet
  step "$LOG/$PROFILE.log" "lose the state of the runtime ($how)" lose_state "$how"
  cmd_start
  say "$(find "$NODE_STATE/lib/cni/networks" -name '*.*.*.*' 2>/dev/null | wc -l) addresses are reserved in $NODE_STATE/lib/cni/networks; recreated pods get new ones"
}

cmd_load() {
  [ -f "${1-}" ] || die "usage: hack/cluster load FILE.tar --profile=$PROFILE"
  cp "$1" "$NODE_STATE/images/"
  step "$LOG/$PROFILE.log" "load ${1##*/}" load_image "/run/node/images/${1##*/}"
}

cmd_in() { exec_inside "$@"; }

# What the API server has of this node goes with it. The control plane goes with the last profile.
cmd_wipe() {
  case "${1-}" in '' | --cache) ;; *) die "usage: hack/cluster wipe [--cache]" ;; esac
  stop_slow
  if mine node; then step "$LOG/$PROFILE.log" "end every process of the node" end_node; fi
  if answers apiserver; then
    (step "$LOG/$PROFILE.log" "delete the node from the API server" forget_node "$NODE") ||
      say "the next start of a node deletes it"
  fi
  if [ -d "$NODE_STATE" ]; then
    cmd_stop
    discard "$NODE_STATE"
    rm -f "$STATE/$PROFILE.conf" "$STATE/run/$PROFILE" "$STATE/pki/$PROFILE".*
  fi
  if [ -d "$STATE" ] && [ -z "$(other_profiles)" ]; then
    cmd_stop # what a start that was killed before it made the node has left
    discard "$STATE"
    remove_unused_bridge
  fi
  rm -f "${STATE%/*}/tested-$PROFILE" # the mark of hack/e2e
  [ "${1-}" != --cache ] || rm -rf "${CACHE:?}"/modules
}

# Nodes of another minor version of Kubernetes use the same one.
remove_unused_bridge() {
  if [ -e "/sys/class/net/$BRIDGE" ] && [ -z "$(ls "/sys/class/net/$BRIDGE/brif")" ]; then
    ip link delete "$BRIDGE"
  fi
}

cmd_env() {
  printf 'export %s=%q\n' KUBECONFIG "$ADMIN" CLUSTER_STATE "${STATE%/*}" CLUSTER_CACHE "$CACHE" \
    CLUSTER_PROFILE "$PROFILE" CLUSTER_KUBERNETES "$MINOR" NODE_NAME "$NODE" NODE_IP "$(node_ip)" NODE_POD_CIDR "$POD_CIDR" \
    NODE_STATE "$NODE_STATE" NODE_NET_D "$(outside $NET_D)" NODE_CNI_BIN "$(outside $CNI_BIN)" \
    NODE_CRI_SOCKET "$ENDPOINT" CLUSTER_KUBERNETES_BIN "$KUBERNETES"
}
