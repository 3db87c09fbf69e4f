# shellcheck shell=bash
# The cgroups of a node, where they can be its own (cgroup v1): its kubelet sees no others, and none is left of its pods.

hierarchies() { [ -e /sys/fs/cgroup/cgroup.controllers ] || printf '%s\n' /sys/fs/cgroup/*/; }

# NAME: move this process there
enter_cgroups() {
  local hierarchy file
  for hierarchy in $(hierarchies); do
    mkdir -p "$hierarchy$1"
    for file in cpuset.cpus cpuset.mems; do # empty in a new one, and then nothing can run there
      if [ -e "$hierarchy$file" ]; then cat "$hierarchy$file" >"$hierarchy$1/$file"; fi
    done
    echo $$ >"$hierarchy$1/cgroup.procs"
  done
}

# NAME: remove them. The kernel keeps a cgroup for a moment after its last process has ended.
remove_cgroups() {
  local hierarchy attempt
  for hierarchy in $(hierarchies); do
    for attempt in $(seq 50); do
      [ -d "$hierarchy$1" ] || break
      find "$hierarchy$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done
}
