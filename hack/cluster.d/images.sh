# shellcheck shell=bash
# Builds the two images for pods locally, without a registry.

make_missing_images() {
  local name
  for name in pause busybox; do
    if ! docker image inspect "nodeleak/$name:1" >/dev/null 2>&1; then
      step "$LOG/images.log" "image nodeleak/$name:1" "image_$name"
    fi
  done
}

image_pause() {
  local dir
  dir=$(mktemp -d)
  gcc -static -Os -o "$dir/pause" "$HERE/pause.c"
  tar -C "$dir" -c pause | docker import -c 'ENTRYPOINT ["/pause"]' - nodeleak/pause:1
  rm -r "$dir"
}

image_busybox() {
  local dir
  dir=$(mktemp -d)
  chmod 755 "$dir" && mkdir -m 1777 "$dir/tmp" && mkdir "$dir/bin" "$dir/etc"
  cp /bin/busybox "$dir/bin/"
  chroot "$dir" /bin/busybox --install -s /bin
  tar -C "$dir" -c . |
    docker import -c 'CMD ["/bin/sh", "-c", "trap exit TERM INT; sleep 1000000 & wait"]' - nodeleak/busybox:1
  rm -r "$dir"
}
