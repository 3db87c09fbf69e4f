# shellcheck shell=bash
# Installs packages and builds the Kubernetes binaries from Debian's source package: no Debian package has 1.20 binaries
# with kubenet and dockershim. Sources and the Go cache are removed after the build.

VERSION=1.20.2
BINARIES=(kubelet kube-apiserver kube-controller-manager kube-scheduler)
PACKAGES=(docker.io containerd runc containernetworking-plugins etcd-server etcd-client iptables iproute2 conntrack socat
  ethtool ebtables busybox-static jq curl procps prometheus prometheus-alertmanager gcc libc6-dev openssl chromium
  fonts-inter)
command -v kubectl >/dev/null || PACKAGES+=(kubernetes-client)
SOURCE=$CACHE/src # while building
GO_LEGACY=/usr/lib/go-1.19/bin/go # Debian's: a newer one, which may be the first in PATH, cannot build these sources

# How the binaries are made, without comments and spaces
recipe() {
  {
    declare -p VERSION GO_LEGACY
    declare -f fetch_source go_build generate_openapi build_binary
    cat "$HERE/reflect2.patch"
  } | sha256sum
}

# Those of another recipe are missing, too.
missing_binaries() {
  local binary made
  made=$(cat "$CACHE/bin/recipe" 2>/dev/null || true)
  for binary in "${BINARIES[@]}"; do
    if [ ! -x "$CACHE/bin/$binary" ] || [ "$made" != "$(recipe)" ]; then echo "$binary"; fi
  done
}

is_built() { [ -z "$(missing_packages; missing_binaries)" ] && [ -e "$CACHE/deviceplugin.proto" ]; }

cmd_packages() {
  PACKAGES=("$@")
  command -v kubectl >/dev/null || PACKAGES+=(kubernetes-client)
  provide_packages
}

cmd_build() {
  local binary binaries
  binaries=$(missing_binaries)
  # shellcheck disable=SC2046
  provide_packages $([ -z "$binaries" ] || echo golang-1.19-go patch)
  mkdir -p "$CACHE/bin"
  if [ -n "$binaries" ] || [ ! -e "$CACHE/deviceplugin.proto" ]; then
    step "$CACHE/log/source.log" "sources" fetch_source
  fi
  if [ -n "$binaries" ]; then
    step "$CACHE/log/openapi.log" "generate the OpenAPI definitions" generate_openapi
    for binary in $binaries; do step "$CACHE/log/$binary.log" "build $binary" build_binary "$binary"; done
    recipe >"$CACHE/bin/recipe"
  fi
  rm -rf "$SOURCE"
  say "built: Kubernetes $VERSION in $CACHE/bin"
}

# apt uses a separate sources file and list directory: the machine's own configuration is not changed.
fetch_source() {
  local from=/etc/apt/sources.list.d/debian.sources list=$SOURCE/nodeleak-src.sources apt
  rm -rf "$SOURCE"/{lists,gopath} # keep the Go cache: an interrupted build resumes
  mkdir -p "$SOURCE/lists/partial" "$SOURCE/gopath/src/k8s.io/kubernetes"
  if [ -e "$from" ]; then
    sed 's/^Types:.*/Types: deb-src/' "$from" >"$list"
  else
    list=$SOURCE/nodeleak-src.list
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$list"
  fi
  apt=(apt-get -o "Dir::Etc::sourcelist=$list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$SOURCE/lists"
    -o APT::Sandbox::User=root)
  "${apt[@]}" update
  cd "$SOURCE" || return
  "${apt[@]}" source --download-only kubernetes
  [ -n "$(compgen -G "kubernetes_*$VERSION*.orig.tar.gz")" ] || die "the source package is not $VERSION: $(ls)"
  tar -C gopath/src/k8s.io/kubernetes --strip-components=1 -xzf kubernetes_*.orig.tar.gz
  patch -d gopath/src/k8s.io/kubernetes -p1 <"$HERE/reflect2.patch"
  cp gopath/src/k8s.io/kubernetes/staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto "$CACHE/deviceplugin.proto"
}

go_build() {
  GOROOT='' GO111MODULE=off GOPATH=$SOURCE/gopath GOCACHE=$SOURCE/gocache GOPROXY=off GOTOOLCHAIN=local GOFLAGS='' CGO_ENABLED=0 \
    "$GO_LEGACY" build "$@"
}

# The source package lacks these generated files, and the API server does not compile without them.
generate_openapi() {
  local inputs
  cd "$SOURCE/gopath/src/k8s.io/kubernetes" || return
  go_build -o "$SOURCE/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  inputs=$(grep -rl --include='*.go' '+k8s:openapi-gen=' vendor/k8s.io staging/src/k8s.io pkg | grep -v _test.go |
    xargs -n1 dirname | sort -u |
    grep -vE 'sample-apiserver|kube-openapi|/testdata|code-generator/_examples|apiextensions-apiserver/examples' |
    sed -E 's#^staging/src/#vendor/#; s#^#k8s.io/kubernetes/#' | paste -sd,)
  GOROOT='' GO111MODULE=off GOPATH=$SOURCE/gopath "$SOURCE/openapi-gen" -O zz_generated.openapi -i "$inputs" \
    --output-package k8s.io/kubernetes/pkg/generated/openapi --output-base "$SOURCE/gopath/src" \
    -h hack/boilerplate/boilerplate.generatego.txt -r "$SOURCE/violations.txt"
}

# Kubernetes keeps its version in two packages: one for --version, one for /version of the API server.
build_binary() {
  local package flags="-s -w"
  for package in component-base client-go/pkg; do
    package=k8s.io/kubernetes/vendor/k8s.io/$package/version
    flags+=" -X $package.gitVersion=v$VERSION -X $package.gitMajor=1 -X $package.gitMinor=20"
  done
  cd "$SOURCE/gopath/src/k8s.io/kubernetes" || return
  go_build -o "$SOURCE/$1" -ldflags "$flags" "./cmd/$1"
  mv "$SOURCE/$1" "$CACHE/bin/$1"
}
