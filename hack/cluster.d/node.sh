# shellcheck shell=bash
# A node in namespaces of its own, seen from outside. Its runtime (runtime-PROFILE.sh) defines NUMBER, RUNTIME (units),
# NETWORK, ENDPOINT, configure_runtime, runtime_answers, load_image and lose_runtime_state.

# shellcheck source=cgroups.sh
. "$HERE/cgroups.sh"

KUBELET=(kubelet --config=/var/lib/kubelet/config.yaml)
NET_D=/etc/cni/net.d CNI_BIN=/opt/cni/bin
NODE_PATH=$KUBERNETES:$(built flannel):/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

node_ip() { echo "10.254.0.$NUMBER"; }
outside() { echo "$NODE_STATE${1#/var}"; } # PATH: where a path of the node is on this machine

# PROFILE: print the pid of the first process of its node, as it is seen from outside
node_pid() {
  local unshare
  unshare=$(recorded "$1") && pgrep -P "$unshare" -f '^bash [^-].*/node-init ' # not what made its cgroups
}

unit_pid() {
  local first
  first=$(pid_of node) && pgrep -P "$first" -x "${1/kubelet/kubelet|k3s-.*}"
}

# COMMAND...: run it on the node; it ends with its caller
inside() { (exec_inside "$@"); }
exec_inside() {
  local first
  first=$(first_process)
  exec env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY PATH="$NODE_PATH" \
    NODELEAK_NODE="${NODELEAK_NODE-$NODE}" NODELEAK_KUBECONFIG="${NODELEAK_KUBECONFIG-/etc/kubernetes/kubelet.conf}" \
    nsenter --target="$first" --mount --pid --net --uts setpriv --pdeathsig=TERM -- "$@"
}
first_process() { pid_of node || die "the node is not running: hack/cluster start --profile=$PROFILE"; }

run_node() {
  local unit
  if answers apiserver; then forget_wiped_nodes; fi
  mkdir -p "$NODE_STATE"/{etc/{cni,kubernetes/{pki,manifests}},opt/cni,lib/kubelet/pki,log,units,images} "$(outside $NET_D)" "$(outside $CNI_BIN)"
  [ -e "$STATE/$PROFILE.conf" ] || (node_credentials "$PROFILE" "$NODE" "$(node_ip)" "$API_ADDRESS")
  cp "$STATE/$PROFILE.conf" "$NODE_STATE/etc/kubernetes/kubelet.conf"
  cp "$STATE/pki/ca.crt" "$NODE_STATE/etc/kubernetes/pki/"
  cp "$STATE/pki/$PROFILE.crt" "$NODE_STATE/lib/kubelet/pki/kubelet.crt"
  cp "$STATE/pki/$PROFILE.key" "$NODE_STATE/lib/kubelet/pki/kubelet.key"
  [ -n "$(ls "$(outside $NET_D)")" ] || default_network >"$(outside $NET_D)/10-pods.conflist"
  cp -n "$(built cni)"/* "$(built flannel-cni)"/* "$(outside $CNI_BIN)/"
  [ -z "${CLUSTER_SLOW-}" ] || slow_plugins "$(outside $CNI_BIN)" "$(outside $CNI_BIN)"
  cp -n "$CACHE"/images/*.tar "$NODE_STATE/images/"
  configure_kubelet
  configure_runtime
  for unit in "${UNITS[@]}"; do touch "$NODE_STATE/hold-$unit"; done
  spawn "$PROFILE" bash -c '. "$0" && enter_cgroups "$1" && shift && exec "$@"' "$HERE/cgroups.sh" "$NODE" \
    unshare --mount --pid --net --uts --cgroup --fork --kill-child --mount-proc --propagation private \
    bash "$HERE/node-init" "$NODE_STATE" "${UNITS[@]}"
  until mine node; do sleep 0.05; done
  connect
}

# The node's eth0, its way out, and the API server at the address that pods are told (there is no kube-proxy)
connect() {
  local link=nl-$PROFILE
  if [ ! -e "/sys/class/net/$BRIDGE" ]; then
    ip link add "$BRIDGE" address 02:00:0a:fe:00:01 type bridge # its own: otherwise it changes with the nodes, which then lose it
    ip addr add "$API_ADDRESS/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
  fi
  if [ -e "/sys/class/net/$link" ]; then ip link delete "$link"; fi # of a node that has just ended
  ip link add "$link" type veth peer name eth0 netns "$(pid_of node)"
  ip link set "$link" master "$BRIDGE" up
  inside sh -ec "
    hostname $NODE
    ip link set lo up
    ip addr add $(node_ip)/24 dev eth0
    ip link set eth0 up
    ip route add default via $API_ADDRESS
    echo 1 >/proc/sys/net/ipv4/ip_forward
    iptables -t nat -A POSTROUTING -s $POD_CIDR ! -d $POD_CIDR -o eth0 -j MASQUERADE
    for chain in PREROUTING OUTPUT; do
      iptables -t nat -A \$chain -d $SERVICE_NET.1 -p tcp --dport 443 -j DNAT --to-destination $API_ADDRESS:${PORTS[apiserver]}
    done"
}

# Its namespaces end with it, and with them its processes, mounts and network. What is below /run is gone, /var stays.
end_node() {
  local unshare
  unshare=$(recorded "$PROFILE") || return 0
  kill -KILL "$(pid_of node)"
  while recorded "$PROFILE" >/dev/null; do sleep 0.1; done
  rm -f "$STATE/run/$PROFILE"
  remove_cgroups "$NODE"
}

# Delete what the API server has of nodes without a state. A wipe can do it only while it answers.
forget_wiped_nodes() {
  local node
  for node in $(admin get nodes -o jsonpath='{.items[*].metadata.name}'); do
    if [ ! -d "$STATE/${node#nodeleak-}/units" ]; then forget_node "$node"; fi
  done
}

# NODE: delete what the API server has of it: what would make pods for it, its pods, its attachments
# and its lease. The Node is deleted last, so that an attempt that was interrupted is repeated.
forget_node() {
  local kind namespace name
  for kind in daemonsets deployments jobs; do
    admin get "$kind" --all-namespaces -o json | jq -r --arg node "$1" '.items[] |
      select(.spec.template.spec.nodeSelector["kubernetes.io/hostname"] == $node) | .metadata |
      "\(.namespace) \(.name)"' | while read -r namespace name; do
      admin delete "$kind" --namespace="$namespace" "$name" --wait=false </dev/null
    done
  done
  admin delete pods --all-namespaces --field-selector="spec.nodeName=$1" --force --grace-period=0 \
    --wait=false
  admin get volumeattachments -o json | jq -r --arg node "$1" '.items[] |
    select(.spec.nodeName == $node).metadata.name' | while read -r name; do
    admin patch volumeattachment "$name" --type=merge -p '{"metadata": {"finalizers": null}}' \
      </dev/null
    admin delete volumeattachment "$name" --ignore-not-found --wait=false </dev/null
  done
  admin delete lease --namespace=kube-node-lease "$1" --ignore-not-found
  admin delete node "$1" --ignore-not-found
}

# UNIT: start it, if it does not run, and wait until it answers
bring_up_unit() {
  local end=$((SECONDS + TIMEOUT))
  first_process
  rm -f "$NODE_STATE/hold-$1"
  until answers "$1"; do
    if [ "$1" = kubelet ]; then give_pod_cidr; fi
    if ((SECONDS >= end)); then
      tail -n 20 "$NODE_STATE/log/$1.log"
      die "$1 did not answer within $TIMEOUT s"
    fi
    sleep 0.3
  done
  if [ "$1" = "${RUNTIME[-1]}" ]; then load_images; fi
}

# UNIT: end it, and keep it from starting again. node-init sends SIGTERM, on which a suspended unit
# does not act.
hold() {
  local end=$((SECONDS + 15)) signal=CONT pid
  touch "$NODE_STATE/hold-$1"
  while pid=$(pid_of "$1"); do
    if ((SECONDS >= end)); then signal=KILL; fi
    kill "-$signal" "$pid" 2>/dev/null || true
    sleep 0.1
  done
}

default_network() {
  cat <<END
{"cniVersion": "1.0.0", "name": "$NETWORK", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
}

configure_kubelet() {
  cat >"$NODE_STATE/lib/kubelet/config.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: /var/lib/kubelet/pki/kubelet.crt
tlsPrivateKeyFile: /var/lib/kubelet/pki/kubelet.key
readOnlyPort: 0
containerRuntimeEndpoint: unix://$ENDPOINT
imageGCHighThresholdPercent: 100
evictionHard: {}
clusterDNS: [$SERVICE_NET.10]
resolvConf: /etc/resolv.conf
staticPodPath: /etc/kubernetes/manifests
END
  unit kubelet "${KUBELET[@]}" --kubeconfig=/etc/kubernetes/kubelet.conf \
    --hostname-override="$NODE" --node-ip="$(node_ip)" --node-labels="runtime=$PROFILE" --v=2 ${KUBELET_EXTRA-}
}

# UNIT COMMAND...: what runs the unit
unit() {
  local unit=$1
  shift
  printf '#!/bin/bash\nPATH=%q\nexec %s\n' "$NODE_PATH" "${*@Q}" >"$NODE_STATE/units/$unit"
  chmod +x "$NODE_STATE/units/$unit"
}

load_images() {
  local image
  for image in "$NODE_STATE"/images/*.tar; do load_image "/run/node/images/${image##*/}"; done
}

# HOW: the runtime forgets its pods, and host-local's reservations stay. ghosts: the network namespaces of the pods stay
# too, and their addresses still answer. records: libcni's cached results go too, so that nothing names the pods.
lose_state() {
  local unit state=${RUNTIME_STATE// /|^}
  for unit in $(printf '%s\n' "${RUNTIME[@]}" | tac); do hold "$unit"; done
  inside sh -c '
    pkill -KILL -x "containerd-shim|conmon|containerd"
    own=$(readlink /proc/1/ns/mnt)
    for process in /proc/[0-9]*; do
      mounts=$(readlink "$process/ns/mnt") && [ "$mounts" = "$own" ] || kill -KILL "${process#/proc/}"
    done 2>/dev/null
    unmount() { awk "$1 {print \$2}" /proc/mounts | tac | xargs -r -n1 umount -l; }
    if [ "$0" != ghosts ]; then unmount "\$3 == \"nsfs\""; rm -rf /run/netns/*; fi
    unmount "\$3 != \"nsfs\" && \$2 ~ \"^'"$state"'\""
    cd / && for directory in '"$RUNTIME_STATE"'; do rm -rf "$directory"/* 2>/dev/null; done
    find /sys/fs/cgroup/*/ -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null; true' "$1"
  if [ "$1" = records ]; then rm -rf "$NODE_STATE"/lib/cni/{results,cache}; fi
}
