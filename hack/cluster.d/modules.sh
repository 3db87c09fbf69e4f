# shellcheck shell=bash
# Builds what the profiles of today need from Go modules (go/NAME, which pins versions and checksums), each once. go.sum
# has only what a build reads. After a change of go.mod: `rm go.sum; GOFLAGS=-mod=mod go list -deps tool`, not `go mod tidy`.

GO=${CLUSTER_GO:-go}
PINNED_MINOR=$(sed -nE 's#^\tk8s.io/kubernetes v([0-9]+\.[0-9]+)\..*#\1#p' "$HERE/go/kubernetes/go.mod")
MINOR=${MINOR:-$PINNED_MINOR}
MODULES=(kubernetes etcd cni flannel flannel-cni)

# MODULE: print its directory; another minor version of Kubernetes gets one in the cache
module() {
  if [ "$1" = kubernetes ] && [ "$MINOR" != "$PINNED_MINOR" ]; then
    echo "$CACHE/modules/go/kubernetes-$MINOR"
  else
    echo "$HERE/go/$1"
  fi
}

# MODULE: print where its programs are built. What it pins is in the name.
built() {
  local module
  module=$(module "$1")
  echo "$CACHE/modules/${module##*/}-$(cat "$module"/* | sha256sum | cut -c1-12)"
}

missing_builds() {
  local name
  for name in "${MODULES[@]}"; do
    [ -d "$(built "$name")" ] || echo "$name"
  done
}

is_built() {
  [ -z "$(missing_packages; missing_builds)" ] &&
    [ -e "$CACHE/images/pause.tar" ] && [ -e "$CACHE/images/busybox.tar" ]
}

cmd_build() {
  local name
  provide_packages
  mkdir -p "$CACHE"/{modules,images}
  if [ "$MINOR" != "$PINNED_MINOR" ] && [ ! -d "$(module kubernetes)" ]; then
    step "$CACHE/log/kubernetes-$MINOR.log" "pin Kubernetes $MINOR" pin_minor
  fi
  for name in $(missing_builds); do
    "$GO" version >/dev/null 2>&1 || did_not_run "it is built with Go, and there is none (CLUSTER_GO)"
    (step "$CACHE/log/$name.log" "modules of $name" download "$name") || did_not_run "the Go module proxy does not serve $name"
    step "$CACHE/log/$name.log" "build $name" build_module "$name"
  done
  for name in pause busybox; do
    [ -e "$CACHE/images/$name.tar" ] || step "$CACHE/log/images.log" "image $name" archive_image "$name" "$CACHE/images/$name.tar"
  done
  say "built: Kubernetes $(kubernetes_version) and the other programs of a node in $CACHE/modules"
}

# REASON: what this profile needs cannot be had on this machine; exit code 3
did_not_run() {
  echo "cluster: profile $PROFILE DID NOT RUN: $*" >&2
  exit 3
}

# The build cache of Go lets an interrupted build go on. Nothing depends on the settings of the machine.
go_with_cgo() { GOFLAGS=-mod=readonly GO111MODULE=on GOWORK=off CGO_ENABLED=$1 "$GO" "${@:2}"; }

# MODULE: set how it is built
options() {
  cgo=0 packages=tool tags=
  case "$1" in
    kubernetes) packages=. ;;
    flannel) cgo=1 ;;
    cri-o) cgo=1 tags=containers_image_openpgp,exclude_graphdriver_btrfs ;; # without GPGME and libbtrfs
  esac
}

# MODULE: get the modules that its build reads. (`go mod download` gets all, and writes their checksums into go.sum.)
download() {
  local cgo packages tags
  options "$1"
  cd "$(module "$1")" || return
  go_with_cgo "$cgo" list -deps -tags "$tags" "$packages"
}

kubernetes_version() { sed -nE 's#^(require |\t)k8s.io/kubernetes v([^ ]*).*#\2#p' "$(module kubernetes)/go.mod"; }

build_module() {
  local name=$1 target version package cgo packages tags flags="-s -w"
  target=$(built "$name")
  options "$name"
  cd "$(module "$name")" || return
  if [ "$name" = kubernetes ]; then
    version=$(kubernetes_version)
    for package in component-base client-go/pkg; do
      flags+=" -X k8s.io/$package/version.gitVersion=v$version"
      flags+=" -X k8s.io/$package/version.gitMajor=${version%%.*} -X k8s.io/$package/version.gitMinor=${MINOR#*.}"
    done
  fi
  rm -rf "$target.new"
  go_with_cgo "$cgo" build -trimpath -tags "$tags" -ldflags "$flags" -o "$target.new/" "$packages"
  case "$name" in
    kubernetes) for link in kubelet kube-{apiserver,controller-manager,scheduler} kubectl; do ln -s kubernetes "$target.new/$link"; done ;;
    etcd) mv "$target.new/server" "$target.new/etcd" ;;
    flannel) mv "$target.new/flannel" "$target.new/flanneld" ;;
    cri-o) gcc -std=c99 -Os -static -o "$target.new/pinns" "$("$GO" list -m -f '{{.Dir}}' github.com/cri-o/cri-o)"/pinns/src/*.c ;;
  esac
  mv "$target.new" "$target"
}

# Another minor version, in its newest patch: the module of the pinned one with its versions replaced. What the others
# that it requires are follows from Kubernetes alone.
pin_minor() {
  local module pinned version
  module=$(module kubernetes)
  pinned=$(sed -nE 's#^\tk8s.io/kubernetes v([^ ]*).*#\1#p' "$HERE/go/kubernetes/go.mod")
  version=$(cd "$HERE/go/kubernetes" && go_with_cgo 0 list -m -versions k8s.io/kubernetes | tr ' ' '\n' |
    sed -n "s/^v\(${MINOR//./\\.}\.[0-9]*\)$/\1/p" | sort -V | tail -n 1)
  [ -n "$version" ] || die "there is no Kubernetes $MINOR"
  rm -rf "$module.new"
  mkdir -p "$module.new"
  cd "$module.new" || return
  cp "$HERE/go/kubernetes/main.go" .
  sed -E "/indirect|cobra|^go /d; s/v${pinned//./\\.}/v$version/; s/v0${pinned#1}/v0${version#1}/" "$HERE/go/kubernetes/go.mod" >go.mod
  GOFLAGS=-mod=mod GO111MODULE=on GOWORK=off "$GO" mod tidy
  mv "$module.new" "$module"
}
