# shellcheck shell=bash
# The cluster's certificates and kubeconfigs. Created in a temporary directory and moved, so that no partial set is used.

make_pki() {
  local user
  rm -rf "$STATE/pki.new"
  mkdir -m 700 "$STATE/pki.new"
  cd "$STATE/pki.new" || return
  openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=nodeleak-cluster -days 3650
  certificate apiserver /CN=kube-apiserver \
    DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:$SERVICE_NET.1,IP:127.0.0.1${API_ADDRESS:+,IP:$API_ADDRESS}
  certificate admin /O=system:masters/CN=admin DNS:admin
  certificate controller-manager /CN=system:kube-controller-manager DNS:controller-manager
  certificate scheduler /CN=system:kube-scheduler DNS:scheduler
  openssl genrsa -out sa.key 2048
  openssl rsa -in sa.key -pubout -out sa.pub
  for user in admin controller-manager scheduler; do kubeconfig "$user" 127.0.0.1; done
  rm ./*.csr
  mv ./*.conf "$STATE/"
  mv "$STATE/pki.new" "$STATE/pki"
}

certificate() { # NAME SUBJECT ALTERNATIVE-NAMES
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3")
}

# Of a kubelet, which may start later than the control plane
node_credentials() { # NAME NODE ADDRESS API-SERVER
  cd "$STATE/pki" || return
  certificate "$1" "/O=system:nodes/CN=system:node:$2" "DNS:$2,DNS:localhost,IP:127.0.0.1,IP:$3"
  kubeconfig "$1" "$4"
  rm "$1.csr"
  mv "$1.conf" "$STATE/"
}

kubeconfig() { # USER API-SERVER
  local config=(kubectl config --kubeconfig="$1.conf")
  "${config[@]}" set-cluster nodeleak "--server=https://$2:${PORTS[apiserver]}" --certificate-authority=ca.crt --embed-certs
  "${config[@]}" set-credentials "$1" --client-certificate="$1.crt" --client-key="$1.key" --embed-certs
  "${config[@]}" set-context nodeleak --cluster=nodeleak --user="$1"
  "${config[@]}" use-context nodeleak
}
