# shellcheck shell=bash
# The control plane: etcd, API server, controller-manager and scheduler. A profile sets KUBERNETES, API_BIND, SERVICE_NET
# (the first three bytes of service addresses), the ports, and EXTRA_FLAGS that only its version has or needs.

# PART: does it answer?
control_plane_answers() {
  case "$1" in
    etcd) healthz "http://127.0.0.1:${PORTS[etcd]% *}/health" ;;
    apiserver) admin get --raw /readyz ;;
    controller-manager | scheduler) healthz "https://127.0.0.1:${PORTS[$1]}/healthz" ;;
    *) return 1 ;;
  esac
}

# no pod is admitted before it exists
wait_for_service_account() {
  local end=$((SECONDS + TIMEOUT))
  until admin get serviceaccount default; do
    ((SECONDS < end)) || die "the controller-manager did not create the default service account within $TIMEOUT s"
    sleep 0.3
  done
}

run_etcd() {
  local client=http://127.0.0.1:${PORTS[etcd]% *} peer=http://127.0.0.1:${PORTS[etcd]#* }
  spawn etcd etcd --data-dir "$STATE/etcd" --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer"
}

run_apiserver() {
  spawn apiserver "$KUBERNETES/kube-apiserver" --etcd-servers="http://127.0.0.1:${PORTS[etcd]% *}" \
    --bind-address="$API_BIND" --secure-port="${PORTS[apiserver]}" --advertise-address="$(node_ip)" \
    --tls-cert-file="$STATE/pki/apiserver.crt" --tls-private-key-file="$STATE/pki/apiserver.key" \
    --client-ca-file="$STATE/pki/ca.crt" --authorization-mode=Node,RBAC \
    --service-cluster-ip-range="$SERVICE_NET.0/24" --allow-privileged=true \
    --service-account-issuer=https://kubernetes.default --service-account-key-file="$STATE/pki/sa.pub" \
    --service-account-signing-key-file="$STATE/pki/sa.key" \
    --kubelet-client-certificate="$STATE/pki/admin.crt" --kubelet-client-key="$STATE/pki/admin.key" \
    --kubelet-preferred-address-types=InternalIP
}

# One instance of each: without leader election a restart does not wait for the old lease.
run_controller_manager() {
  # shellcheck disable=SC2086
  spawn controller-manager "$KUBERNETES/kube-controller-manager" --kubeconfig="$STATE/controller-manager.conf" \
    --bind-address=127.0.0.1 --secure-port="${PORTS[controller-manager]}" --leader-elect=false \
    --service-account-private-key-file="$STATE/pki/sa.key" --root-ca-file="$STATE/pki/ca.crt" \
    --use-service-account-credentials=true --allocate-node-cidrs=false ${EXTRA_FLAGS[controller-manager]}
}

run_scheduler() {
  # shellcheck disable=SC2086
  spawn scheduler "$KUBERNETES/kube-scheduler" --kubeconfig="$STATE/scheduler.conf" \
    --bind-address=127.0.0.1 --secure-port="${PORTS[scheduler]}" --leader-elect=false ${EXTRA_FLAGS[scheduler]}
}
