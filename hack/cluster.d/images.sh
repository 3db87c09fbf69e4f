# shellcheck shell=bash
# The two images for pods, made here, without a registry: their root directories, for docker and as archives.

declare -gA IMAGE_COMMAND=([pause]='ENTRYPOINT ["/pause"]' [busybox]='CMD ["/bin/sh", "-c", "trap exit TERM INT; sleep 1000000 & wait"]')

make_missing_images() {
  local name
  for name in pause busybox; do
    if ! docker image inspect "nodeleak/$name:1" >/dev/null 2>&1; then
      step "$LOG/images.log" "image nodeleak/$name:1" import_image "$name"
    fi
  done
}

import_image() {
  local dir
  dir=$(mktemp -d)
  "root_of_$1" "$dir"
  tar -C "$dir" -c . | docker import -c "${IMAGE_COMMAND[$1]}" - "nodeleak/$1:1"
  rm -r "$dir"
}

# NAME FILE: write the image as `docker save` does
archive_image() {
  local dir layer command=${IMAGE_COMMAND[$1]}
  dir=$(mktemp -d)
  mkdir "$dir/root"
  "root_of_$1" "$dir/root"
  tar -C "$dir/root" -cf "$dir/layer.tar" .
  layer=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
  jq -n --arg layer "sha256:$layer" --arg key "${command%% *}" --argjson words "${command#* }" '
    {architecture: "amd64", os: "linux", rootfs: {type: "layers", diff_ids: [$layer]}, history: [{created_by: "hack/cluster"}],
     config: (if $key == "CMD" then {Cmd: $words} else {Entrypoint: $words} end)}' >"$dir/config.json"
  jq -n --arg name "docker.io/nodeleak/$1:1" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' \
    >"$dir/manifest.json"
  tar -C "$dir" -cf "$2.new" config.json manifest.json layer.tar
  mv "$2.new" "$2"
  rm -r "$dir"
}

root_of_pause() { gcc -static -Os -o "$1/pause" "$HERE/pause.c"; }

root_of_busybox() {
  chmod 755 "$1" && mkdir -m 1777 "$1/tmp" && mkdir "$1/bin" "$1/etc"
  cp /bin/busybox "$1/bin/"
  chroot "$1" /bin/busybox --install -s /bin
}
