# shellcheck shell=bash
# The cluster's certificates and kubeconfigs. Created in a temporary directory and moved, so that no partial set is used.

make_pki() {
  local ip user
  ip=$(node_ip)
  rm -rf "$STATE/pki.new"
  mkdir -m 700 "$STATE/pki.new"
  cd "$STATE/pki.new" || return
  openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=nodeleak-cluster -days 3650
  certificate apiserver /CN=kube-apiserver \
    DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1
  certificate admin /O=system:masters/CN=admin DNS:admin
  certificate kubelet "/O=system:nodes/CN=system:node:$NODE" "DNS:$NODE,DNS:localhost,IP:127.0.0.1,IP:$ip"
  certificate controller-manager /CN=system:kube-controller-manager DNS:controller-manager
  certificate scheduler /CN=system:kube-scheduler DNS:scheduler
  openssl genrsa -out sa.key 2048
  openssl rsa -in sa.key -pubout -out sa.pub
  for user in admin kubelet controller-manager scheduler; do kubeconfig "$user"; done
  rm ./*.csr
  mv ./*.conf "$STATE/"
  mv "$STATE/pki.new" "$STATE/pki"
}

certificate() { # NAME SUBJECT ALTERNATIVE-NAMES
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3")
}

kubeconfig() { # USER
  local config=(kubectl config --kubeconfig="$1.conf")
  "${config[@]}" set-cluster nodeleak --server=https://127.0.0.1:6443 --certificate-authority=ca.crt --embed-certs
  "${config[@]}" set-credentials "$1" --client-certificate="$1.crt" --client-key="$1.key" --embed-certs
  "${config[@]}" set-context nodeleak --cluster=nodeleak --user="$1"
  "${config[@]}" use-context nodeleak
}
