# shellcheck shell=bash
# The parts: their ports, commands, health checks and cleanup.

declare -A PORTS=([etcd]="2379 2380" [docker]="" [apiserver]=6443 [controller-manager]=10257 [scheduler]=10259
  [kubelet]="10248 10250" [containerd]="10348 10350")

admin() { kubectl --kubeconfig "$ADMIN" --request-timeout=5s "$@"; }
healthz() { curl -sfk --noproxy '*' --max-time 5 "$1"; }

# PART: does it answer?
answers() {
  case "$1" in
    etcd) etcdctl --endpoints=http://127.0.0.1:2379 endpoint health ;;
    docker) docker info ;;
    apiserver) admin get --raw /readyz ;;
    controller-manager) healthz https://127.0.0.1:10257/healthz ;;
    scheduler) healthz https://127.0.0.1:10259/healthz ;;
    kubelet) healthz http://127.0.0.1:10248/healthz && { ! answers apiserver || node_ready; } ;;
    containerd) containerd_ready ;;
  esac >/dev/null 2>&1
}

# Ready, with a heartbeat since the kubelet's start: the status of an earlier kubelet stays for 40 s after its end
node_ready() {
  local status heartbeat
  read -r status heartbeat < <(admin get node "$NODE" -o \
    jsonpath='{range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{"\n"}{end}')
  [ "$status" = True ] || return 1
  ! mine kubelet || [[ ! $heartbeat < $(date -u -r "$STATE/run/kubelet" +%FT%TZ) ]]
}

# no pod is admitted before it exists
wait_for_service_account() {
  local end=$((SECONDS + TIMEOUT))
  until admin get serviceaccount default; do
    ((SECONDS < end)) || die "the controller-manager did not create the default service account within $TIMEOUT s"
    sleep 0.3
  done
}

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

run_etcd() {
  spawn etcd etcd --data-dir "$STATE/etcd" --listen-peer-urls http://127.0.0.1:2380 \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
}

run_docker() {
  local flags=(--data-root "$STATE/docker" --exec-root "$STATE/docker-exec" --pidfile "$STATE/run/dockerd.pid"
    --host "$DOCKER_HOST" --exec-opt native.cgroupdriver=cgroupfs --shutdown-timeout 10)
  if oom_score_refused; then
    install -m 755 "$HERE/runc-wrapper" "$STATE/runc-wrapper"
    flags+=(--add-runtime "nodeleak=$STATE/runc-wrapper" --default-runtime nodeleak)
  fi
  save_network
  end_docker_leftovers
  rm -rf "$STATE/docker-exec" "$STATE/run/dockerd.pid" # from an engine that crashed, or from before a reboot
  spawn docker dockerd "${flags[@]}"
}

# Does the kernel refuse to lower oom_score_adj even for root? (no CAP_SYS_RESOURCE)
oom_score_refused() { ! (echo -998 >/proc/self/oom_score_adj) 2>/dev/null; }

run_apiserver() {
  spawn apiserver "$CACHE/bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --bind-address=127.0.0.1 --secure-port=6443 --advertise-address="$(node_ip)" \
    --tls-cert-file="$STATE/pki/apiserver.crt" --tls-private-key-file="$STATE/pki/apiserver.key" \
    --client-ca-file="$STATE/pki/ca.crt" --authorization-mode=Node,RBAC \
    --service-cluster-ip-range=10.96.0.0/24 --allow-privileged=true \
    --service-account-issuer=https://kubernetes.default --service-account-key-file="$STATE/pki/sa.pub" \
    --service-account-signing-key-file="$STATE/pki/sa.key" \
    --kubelet-client-certificate="$STATE/pki/admin.crt" --kubelet-client-key="$STATE/pki/admin.key" \
    --kubelet-preferred-address-types=InternalIP
}

# One instance of each: without leader election a restart does not wait for the old lease.
run_controller_manager() {
  spawn controller-manager "$CACHE/bin/kube-controller-manager" --kubeconfig="$STATE/controller-manager.conf" \
    --bind-address=127.0.0.1 --port=0 --leader-elect=false \
    --service-account-private-key-file="$STATE/pki/sa.key" --root-ca-file="$STATE/pki/ca.crt" \
    --use-service-account-credentials=true --controllers='*,-nodeipam' --allocate-node-cidrs=false
}

# The controller-manager and the kubelet watch this directory. It must be complete when it appears: they read it at once.
install_volume_driver() {
  if cmp -s "$HERE/flexdisk" "$VOLUME_DRIVER/disk"; then return; fi
  rm -rf "$VOLUME_DRIVER" "${VOLUME_DRIVER%/*}/.nodeleak~disk"
  install -D -m 755 "$HERE/flexdisk" "${VOLUME_DRIVER%/*}/.nodeleak~disk/disk"
  mv "${VOLUME_DRIVER%/*}/.nodeleak~disk" "$VOLUME_DRIVER"
}

run_scheduler() {
  spawn scheduler "$CACHE/bin/kube-scheduler" --kubeconfig="$STATE/scheduler.conf" \
    --bind-address=127.0.0.1 --port=0 --leader-elect=false
}

run_kubelet() {
  local extra ip
  answers docker || die "the kubelet needs docker: hack/cluster start docker"
  ip=$(node_ip)
  if answers apiserver; then check_pod_cidr; fi
  [ -z "${KUBELET_EXTRA+set}" ] || printf '%s\n' "$KUBELET_EXTRA" >"$STATE/kubelet.extra"
  touch "$STATE/kubelet.extra"
  read -ra extra <"$STATE/kubelet.extra" || true
  spawn kubelet "$CACHE/bin/kubelet" --kubeconfig="$STATE/kubelet.conf" --hostname-override="$NODE" --node-ip="$ip" \
    --network-plugin=kubenet --cni-bin-dir=/usr/lib/cni --non-masquerade-cidr=0.0.0.0/0 \
    --container-runtime=docker --pod-infra-container-image=nodeleak/pause:1 \
    --cgroup-driver="$(docker info -f '{{.CgroupDriver}}')" --cgroups-per-qos=false --enforce-node-allocatable= \
    --client-ca-file="$STATE/pki/ca.crt" --anonymous-auth=false --authorization-mode=Webhook \
    --authentication-token-webhook=true --read-only-port=0 \
    --tls-cert-file="$STATE/pki/kubelet.crt" --tls-private-key-file="$STATE/pki/kubelet.key" \
    --cluster-dns=10.96.0.10 --resolv-conf=/etc/resolv.conf --fail-swap-on=false \
    --image-gc-high-threshold=100 --eviction-hard= --v=4 "${extra[@]}"
}

node_ip() {
  local ip=${CLUSTER_NODE_IP:-}
  [ -n "$ip" ] || ip=$(ip -4 -o addr show scope global |
    awk '$2 !~ /^(docker|cbr|cni|br-|veth|virbr)/ {sub("/.*", "", $4); print $4; exit}')
  [ -n "$ip" ] || die "no address for the node found (loopback is not possible): set CLUSTER_NODE_IP"
  printf '%s\n' "$ip"
}

pod_cidr() { admin get node "$NODE" --ignore-not-found -o jsonpath='{.spec.podCIDR}'; }

# No controller assigns pod CIDRs here, so this sets one as soon as the kubelet has registered the node.
# (Creating the node first would be simpler, but a 1.20 kubelet panics on a node without a status.)
give_pod_cidr() {
  local cidr=${CLUSTER_CIDR:-10.253.6.128/25}
  [ -n "$(admin get node "$NODE" --ignore-not-found -o name)" ] && [ -z "$(pod_cidr)" ] || return 0
  admin patch node "$NODE" -p "{\"spec\": {\"podCIDR\": \"$cidr\", \"podCIDRs\": [\"$cidr\"]}}"
}

# The node's pod CIDR cannot change, and kubenet cannot use a bridge left by another pod CIDR.
check_pod_cidr() {
  local cidr base bridge
  cidr=$(pod_cidr)
  [ -z "$cidr" ] || [ "$cidr" = "${CLUSTER_CIDR:-$cidr}" ] ||
    die "the node's pod CIDR is $cidr and cannot be changed to $CLUSTER_CIDR: hack/cluster wipe first"
  cidr=${cidr:-${CLUSTER_CIDR:-10.253.6.128/25}} base=${cidr%/*}
  bridge=$(ip -4 -o addr show | awk '$2 == "cbr0" {print $4}')
  if [ -n "$bridge" ] && [ "$bridge" != "${base%.*}.$((${base##*.} + 1))/${cidr#*/}" ]; then remove_bridge; fi
}

addresses() { find "$LEASES" -name '*.*.*.*' 2>/dev/null | wc -l; }

pod_containers() { docker ps -aq --no-trunc --filter label=io.kubernetes.docker.type; }

remove_pod_containers() { pod_containers | xargs -r docker rm -f; }

# A stop releases the addresses of the pods that it removes; earlier leaks stay.
remove_pods() {
  local ids id
  if answers docker; then
    ids=$(pod_containers)
    remove_pod_containers
    for id in $ids; do grep -rlF "$id" "$LEASES" 2>/dev/null | xargs -r rm -v || true; done
  fi
  if [ -e /sys/class/net/cbr0 ]; then remove_bridge; fi
}

# Processes that outlive a killed engine: its containerd, and a shim and a container process for each container.
# The first two have $STATE in their command line; container processes are children of a shim.
end_docker_leftovers() {
  local pid
  for pid in $(pgrep -f "^([^ ]*/)?containerd[^ ]* .*$STATE/docker-exec/containerd/"); do
    echo "kill leftover of the docker engine: $pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"
    pkill -KILL -P "$pid" || true
    kill -KILL "$pid" || true
  done
  unmount "$STATE/docker" "$STATE/docker-exec"
}

remove_bridge() {
  local link
  for link in /sys/class/net/cbr0/brif/veth*; do
    ip link delete "${link##*/}" 2>/dev/null || true # it disappears by itself shortly after its container
  done
  ip link delete cbr0
}

# DIR...: unmount everything at and below these directories
unmount() {
  local dir
  for dir in "$@"; do
    awk -v dir="$dir" '$2 == dir || index($2, dir "/") == 1 {print $2}' /proc/self/mounts | tac | xargs -r -n1 umount -l
  done
}

# As systemd does at boot: pods with HostToContainer mount propagation need it.
share_mounts() {
  [ "$(findmnt -no PROPAGATION /)" = private ] || return 0
  mount --make-shared /
  touch "$STATE/mounts-shared"
}

# The engine enables forwarding and sets the FORWARD policy to DROP; both are restored to their values from before.
save_network() {
  [ -e "$STATE/forwarding" ] ||
    echo "$(iptables -S FORWARD | awk '$1 == "-P" {print $3}') $(</proc/sys/net/ipv4/ip_forward)" >"$STATE/forwarding"
}

restore_network() {
  local policy forward
  iptables-save | sed -E '/KUBE-|kubenet|cbr0/d' | iptables-restore
  ip6tables-save | sed '/KUBE-/d' | ip6tables-restore
  ebtables-save | sed '/KUBE-DEDUP/d' | ebtables-restore
  [ -e "$STATE/forwarding" ] || return 0 # no engine was started
  iptables-save | sed -E '/DOCKER|docker0/d' | iptables-restore
  if [ -e /sys/class/net/docker0 ]; then ip link delete docker0; fi
  read -r policy forward <"$STATE/forwarding"
  iptables -P FORWARD "$policy"
  echo "$forward" >/proc/sys/net/ipv4/ip_forward
}

# Everything that a cluster leaves on the machine, except the cache
remove_state() {
  unmount /var/lib/kubelet "$STATE"
  if answers docker; then docker images -q --filter=reference='nodeleak/*' --filter=reference='registry.invalid/nodeleak' | xargs -r docker image rm -f || true; fi # in an engine that was already running
  if [ -e "$STATE/mounts-shared" ]; then mount --make-private /; fi
  restore_network
  rm -rf "$VOLUME_DRIVER" /run/nodeleak-flexdisk
  rm -rf --one-file-system "$LEASES" /var/lib/cni/cache /var/lib/dockershim /var/lib/kubelet
  rm -rf --one-file-system "${STATE:?}"/{pki,run,log,etcd,docker,docker-exec,containerd,runc-wrapper,kubelet.extra,mounts-shared,forwarding,*.conf}
  rmdir --ignore-fail-on-non-empty "$STATE"
}
