# shellcheck shell=bash
# The profile legacy: Kubernetes 1.20.2 with docker and kubenet.

NODE=nodeleak-node
POD_CIDR=10.253.6.128/25
KUBERNETES=$CACHE/bin
SERVICE_NET=10.96.0 API_BIND=127.0.0.1
VOLUME_DRIVER=/usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeleak~disk
LEASES=/var/lib/cni/networks/kubenet
PARTS=(etcd docker apiserver controller-manager scheduler kubelet) # in the order they start
SUSPENDED=(kubelet docker)
export DOCKER_HOST=unix:///var/run/docker.sock                      # the socket that the kubelet uses, whatever the caller set
declare -gA PORTS=([etcd]="2379 2380" [docker]="" [apiserver]=6443 [controller-manager]=10257 [scheduler]=10259
  [kubelet]="10248 10250")
declare -gA EXTRA_FLAGS=([controller-manager]="--port=0 --controllers=*,-nodeipam" [scheduler]=--port=0)

# PART: does it answer?
answers() {
  case "$1" in
    docker) timeout 10 docker info ;; # a suspended one accepts connections
    kubelet) healthz http://127.0.0.1:10248/healthz && { ! answers apiserver || node_ready; } ;;
    *) control_plane_answers "$1" ;;
  esac >/dev/null 2>&1
}

# [PART...]: docker alone, which builds images, needs nothing that was built
prepare() {
  local missing
  missing=$([ "$*" = docker ] || { missing_packages; missing_binaries; })
  [ -z "$missing" ] || die "missing: ${missing//$'\n'/ }; run hack/cluster build first"
  refuse_real_node
  mkdir -p "$STATE/run" "$LOG" && chmod 700 "$STATE"
  [ -d "$STATE/pki" ] || step "$LOG/pki.log" "certificates and kubeconfigs" make_pki
  [ -e "$STATE/kubelet.conf" ] || step "$LOG/pki.log" "certificate and kubeconfig of the node" node_credentials kubelet "$NODE" "$(node_ip)" 127.0.0.1
  install_volume_driver
  share_mounts
}

start_part() {
  local part=$1
  if [ "$part" = docker ] && ! mine docker && answers docker; then
    say "docker: using the engine that is already running"
    if oom_score_refused; then
      say "docker: pods may fail to start, because the kernel refuses their oom_score_adj (see cluster.d/runc-wrapper)"
    fi
  elif mine "$part" && answers "$part"; then
    say "$part: already running"
    if [ "$part" = kubelet ] && [ -n "${KUBELET_EXTRA+set}" ] && [ "$KUBELET_EXTRA" != "$(cat "$STATE/kubelet.extra")" ]; then
      say "kubelet: KUBELET_EXTRA applies at its next start (hack/cluster stop kubelet; hack/cluster start kubelet)"
    fi
  else
    mine "$part" || rotate "$LOG/$part.log"
    step "$LOG/$part.log" "$part" bring_up "$part"
  fi
  if [ "$part" = docker ]; then make_missing_images; fi
}

end_part() { halt "$1"; }

before_stop() { refuse_real_node; }

after_stop() {
  case "$1" in
    kubelet) step "$LOG/stop.log" "remove the pods" remove_pods ;;
    etcd)
      if ! mine docker; then end_docker_leftovers >>"$LOG/stop.log" 2>&1; fi
      say "all parts are stopped"
      ;;
  esac
}

cmd_leak() {
  refuse_real_node
  mine kubelet || die "the kubelet is not running: hack/cluster start"
  step "$LOG/stop.log" "stop kubelet" halt kubelet
  step "$LOG/stop.log" "docker rm -f every pod container" remove_pod_containers
  # With its checkpoints the kubelet would tear the pods down, and may release their addresses.
  step "$LOG/stop.log" "remove the checkpoints of the sandboxes" rm -f /var/lib/dockershim/sandbox/*
  start_part kubelet
  say "$(find "$LEASES" -name '*.*.*.*' 2>/dev/null | wc -l) addresses are reserved in $LEASES; recreated pods get new ones"
}

# The commands below may remove pod containers and kubelet state: refuse on a machine with another kubelet.
refuse_real_node() {
  local pid
  for pid in $(pgrep -x kubelet); do
    [ "$(readlink "/proc/$pid/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ] || continue # in a container (kind, minikube)
    mine kubelet && [ "$pid" = "$(pid_of kubelet)" ] && continue
    die "another kubelet is running (pid $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c1-100)...)." \
      "This machine may be a node of another cluster: nothing was changed."
  done
  if [ -e /etc/kubernetes/kubelet.conf ]; then
    die "/etc/kubernetes/kubelet.conf exists: this machine is or was a node of another cluster. Nothing was changed."
  fi
  if [ ! -d "$STATE/pki" ] && [ -n "$(ls -A /var/lib/kubelet 2>/dev/null)" ]; then
    die "/var/lib/kubelet has files that no cluster in $STATE created: remove them if they are not needed. Nothing was changed."
  fi
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

# The controller-manager and the kubelet watch this directory. It must be complete when it appears: they read it at once.
install_volume_driver() {
  if cmp -s "$HERE/flexdisk" "$VOLUME_DRIVER/disk"; then return; fi
  rm -rf "$VOLUME_DRIVER" "${VOLUME_DRIVER%/*}/.nodeleak~disk"
  install -D -m 755 "$HERE/flexdisk" "${VOLUME_DRIVER%/*}/.nodeleak~disk/disk"
  mv "${VOLUME_DRIVER%/*}/.nodeleak~disk" "$VOLUME_DRIVER"
}

run_kubelet() {
  local extra ip plugins=/usr/lib/cni
  answers docker || die "the kubelet needs docker: hack/cluster start docker"
  ip=$(node_ip)
  if answers apiserver; then check_pod_cidr; fi
  [ -z "${KUBELET_EXTRA+set}" ] || printf '%s\n' "$KUBELET_EXTRA" >"$STATE/kubelet.extra"
  touch "$STATE/kubelet.extra"
  read -ra extra <"$STATE/kubelet.extra" || true
  if [ -n "${CLUSTER_SLOW-}" ]; then
    slow_plugins "$plugins" "$STATE/slow-plugins"
    plugins=$STATE/slow-plugins
  fi
  spawn kubelet "$CACHE/bin/kubelet" --kubeconfig="$STATE/kubelet.conf" --hostname-override="$NODE" --node-ip="$ip" \
    --network-plugin=kubenet --cni-bin-dir="$plugins" --non-masquerade-cidr=0.0.0.0/0 \
    --container-runtime=docker --pod-infra-container-image=nodeleak/pause:1 \
    --cgroup-driver="$(docker info -f '{{.CgroupDriver}}')" --cgroups-per-qos=false --enforce-node-allocatable= \
    --client-ca-file="$STATE/pki/ca.crt" --anonymous-auth=false --authorization-mode=Webhook \
    --authentication-token-webhook=true --read-only-port=0 \
    --tls-cert-file="$STATE/pki/kubelet.crt" --tls-private-key-file="$STATE/pki/kubelet.key" \
    --cluster-dns=10.96.0.10 --resolv-conf=/etc/resolv.conf --fail-swap-on=false \
    --image-gc-high-threshold=100 --eviction-hard= --v=4 "${extra[@]}"
}

cmd_env() {
  printf 'export %s=%q\n' KUBECONFIG "$ADMIN" NODE_NAME "$NODE" CLUSTER_STATE "$STATE" CLUSTER_CACHE "$CACHE"
}

cmd_wipe() {
  case "${1-}" in '' | --cache) ;; *) die "usage: hack/cluster wipe [--cache]" ;; esac
  if [ -d "$STATE" ]; then
    cmd_stop
    step "$CACHE/log/wipe.log" "remove the cluster's state" remove_state
  else
    say "no cluster in $STATE"
  fi
  if [ "${1-}" = --cache ]; then
    rm -rf "${CACHE:?}"/{bin,src,log,base.tar,deviceplugin.proto}
    rmdir "$CACHE" || say "$CACHE contains other files: kept"
  fi
}

# The node's pod CIDR cannot change, and kubenet cannot use a bridge left by another pod CIDR.
check_pod_cidr() {
  local cidr base bridge
  cidr=$(pod_cidr)
  [ -z "$cidr" ] || [ "$cidr" = "${CLUSTER_CIDR:-$cidr}" ] ||
    die "the node's pod CIDR is $cidr and cannot be changed to $CLUSTER_CIDR: hack/cluster wipe first"
  cidr=${cidr:-${CLUSTER_CIDR:-$POD_CIDR}} base=${cidr%/*}
  bridge=$(ip -4 -o addr show | awk '$2 == "cbr0" {print $4}')
  if [ -n "$bridge" ] && [ "$bridge" != "${base%.*}.$((${base##*.} + 1))/${cidr#*/}" ]; then remove_bridge; fi
}

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
  # What tests move away, and put back unless they are killed
  rm -rf --one-file-system /var/lib{,/cni{,/networks}}/nodeleak-e2e-*
  rm -rf --one-file-system "${STATE:?}"/{pki,run,log,etcd,docker,docker-exec,runc-wrapper}
  rm -rf --one-file-system "${STATE:?}"/{kubelet.extra,slow-plugins,mounts-shared}
  rm -rf --one-file-system "${STATE:?}"/{forwarding,tested-legacy,*.conf}
  rmdir --ignore-fail-on-non-empty "$STATE"
}
