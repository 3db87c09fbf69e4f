# shellcheck shell=bash
# Debian packages that a profile needs (PACKAGES)

missing_packages() {
  local package
  for package in "${PACKAGES[@]}" "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# MORE...: install what is missing of PACKAGES and of these
provide_packages() {
  local packages
  # shellcheck source=/dev/null
  [ "$(. /etc/os-release && echo "${ID-} ${VERSION_ID-}")" = "debian 12" ] ||
    die "this needs Debian 12, for its packages; this is $(. /etc/os-release && echo "$PRETTY_NAME")"
  packages=$(missing_packages "$@")
  [ -n "$packages" ] || return 0
  step "$CACHE/log/packages.log" "package lists" apt-get update
  # shellcheck disable=SC2086
  step "$CACHE/log/packages.log" "packages" install_packages $packages
}

# Some packages contain services: none of them is started, now or at the next boot.
install_packages() {
  local policy=/usr/sbin/policy-rc.d package unit
  # One of ours was left by a run that was killed.
  if [ ! -e "$policy" ] || grep -q 'of hack/cluster$' "$policy"; then
    printf '#!/bin/sh\nexit 101 # of hack/cluster\n' >"$policy" && chmod 755 "$policy"
    # shellcheck disable=SC2064
    trap "rm -f $policy" EXIT
    trap 'exit 143' TERM
  fi
  export DEBIAN_FRONTEND=noninteractive
  dpkg --configure -a # after an installation that was killed, apt-get refuses to work
  apt-get install -y --no-install-recommends "$@"
  command -v systemctl >/dev/null || return 0
  for package in "$@"; do
    for unit in $(dpkg -L "$package" | sed -nE 's#^(/usr)?/lib/systemd/system/([^@/]*\.(service|socket))$#\2#p'); do
      systemctl disable "$unit" || true
    done
  done
}
