"""The catalog of messages of other programs: each sample is one entry, and layers come off."""

from agent.model.catalog import (
    entries,
    events,
    find,
    lower_case,
    matches,
    peel,
    without_quotes,
    without_variable_parts,
)

CONTAINERD = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = "
    'failed to setup network for sandbox "4fab2c": '
)
CRIO = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network "
    "sandbox k8s_web-0_shop_8b1ad9a6_0(72d5aa): error adding pod shop_web-0 to CNI network "
)
DOCKER = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to set up sandbox "
    'container "9e8d7c" network for pod "web-0": networkPlugin cni failed to set up pod '
    '"web-0_shop" network: '
)
MULTUS = (
    'plugin type="multus" name="multus-cni-network" failed (add): [shop/web-0/919b:storage]: '
    'error adding container to network "storage": '
)
SHIM = (
    'plugin type="multus-shim" name="multus-cni-network" failed (add): CmdAdd (shim): CNI request '
    "failed with status 400: '&{ContainerID:4fab2c Netns:/var/run/netns/8c03 IfName:eth0} "
    'ContainerID:"4fab2c" Netns:"/var/run/netns/8c03" ERRORED: error configuring pod [shop/web-0] '
    "networking: [shop/web-0/919b:storage]: error adding container to network "
)
KILLED = (
    'error killing pod: failed to "KillPodSandbox" for "8b1ad9a6-91ee-4d2c-8f4e-5e2f3d6b7a10" '
    "with KillPodSandboxError: "
)
FULL = "failed to allocate for range 0: no IP addresses available in range set: 10.1.1.2-10.1.1.9"

KNOWN = {
    # The outer layers never hide the cause, and never pass for it.
    f'{CONTAINERD}plugin type="flannel" failed (add): failed to delegate add: {FULL}': "range_full",
    f'{CONTAINERD}plugin type="aws-cni" name="aws-cni" failed (add): '
    f"running IPAM plugin failed: {FULL}": "range_full",
    f"{DOCKER}{FULL}": "range_full",
    f'{CRIO}"k8s-pod-network": plugin type="calico" failed (add): {FULL}': "range_full",
    f'{SHIM}"storage": plugin type="macvlan" failed (add): {FULL}\': StdinData: {{"type":"x"}}': (
        "range_full"
    ),
    "NO IP ADDRESSES\n  available in   range set: 10.1.1.2-10.1.1.9": "range_full",
    "failed to allocate for range 0: requested IP address 10.8.0.9 is not available in range set": (
        "requested_address_taken"
    ),
    f'{CONTAINERD}plugin type="ptp" failed (add): failed to allocate for range 1: open '
    "/var/lib/cni/networks/net/last_reserved_ip.1: no space left on device": (
        "reservations_disk_full"
    ),
    # Quotes as other places write them.
    "plugin type=&quot;bridge&quot; failed (add): failed to set bridge addr: &quot;cni0&quot; "
    "already has an IP address different from 10.244.1.1/24": "bridge_other_address",
    "failed to set bridge addr: “cni0” already has an IP address different from 10.1.1.1/24": (
        "bridge_other_address"
    ),
    'E1128 10:00:00 pod_workers.go:965] "Error syncing pod, skipping" err="failed to '
    '\\"KillPodSandbox\\" for \\"8b1a\\" with KillPodSandboxError: \\"rpc error: code = Unknown '
    'desc = failed to destroy network for sandbox \\\\\\"72d5\\\\\\": plugin type=\\\\\\"calico'
    '\\\\\\" failed (delete): error getting ClusterInformation: connection is unauthorized: '
    'Unauthorized\\"" pod="shop/web-0" podUID=8b1a': "calico_unauthorized",
    f'{KILLED}"rpc error: code = Unknown desc = networkPlugin cni failed to teardown pod '
    '\\"web-0_shop\\" network: unexpected end of JSON input"': "truncated_json",
    # A list has the cause first, and a clean-up that failed for it next.
    "Failed to create pod sandbox: rpc error: code = Unknown desc = [failed to set up sandbox "
    'container "9e8d" network for pod "web-0": networkPlugin cni failed to set up pod "web-0_shop" '
    "network: open /run/flannel/subnet.env: no such file or directory, failed to clean up sandbox "
    'container "9e8d" network for pod "web-0": networkPlugin cni failed to teardown pod '
    '"web-0_shop" network: failed to find plugin "portmap" in path [/opt/cni/bin]]': (
        "flannel_subnet_env"
    ),
    'error killing pod: [failed to "KillContainer" for "app" with KillContainerError: "rpc error: '
    'code = DeadlineExceeded desc = context deadline exceeded", failed to "KillPodSandbox" for '
    '"8b1a" with KillPodSandboxError: "rpc error: code = Unknown desc = boom"]': (
        "kill_container_failed"
    ),
    # As old versions, logs and tickets have them.
    "Failed create pod sandbox: rpc error: code = Unknown desc = [failed to set up sandbox "
    'container "e1a7" network for pod "web-0": NetworkPlugin cni failed to set up pod "web-0_shop" '
    'network: [shop/web-0:macvlan-conf]: error adding container to network "macvlan-conf": Link '
    'not found, failed to clean up sandbox container "e1a7" network for pod "web-0": boom]': (
        "master_missing"
    ),
    'time="2026-05-11T16:09:21Z" level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:web-0,'
    'Uid:eeb6,Namespace:shop,Attempt:0,} failed, error" error="failed to setup network for sandbox '
    '\\"f1f5\\": plugin type=\\"calico\\" failed (add): netplugin failed with no error message: '
    'signal: killed"': "plugin_killed",
    "FATA[0000] run pod sandbox: rpc error: code = Unknown desc = failed to setup network for "
    'sandbox "2dd1": Multus: [/web-0]: error getting pod: an empty namespace may not be set': (
        "multus_cannot_read_pod"
    ),
    # An inner text that nobody knows leaves the word of the layer around it.
    f'{KILLED}"rpc error: code = Unknown desc = failed to destroy network for sandbox \\"72d5\\": '
    'plugin type=\\"acme\\" failed (delete): boom"': "destroy_network_failed",
    f'{KILLED}"rpc error: code = Unknown desc = boom"': "kill_sandbox_failed",
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
    "message:Network plugin returns error: no agent": "network_not_ready",
    "  Warning  NetworkNotReady  2m (x2 over 3m) kubelet network is not ready: container runtime "
    "network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin "
    "returns error: cni plugin not initialized": "containerd_no_network",
    # The same words with another subject.
    "Pod was rejected: Allocate failed due to rpc error: code = DeadlineExceeded desc = context "
    "deadline exceeded, which is unexpected": "device_plugin_refused",
    "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[]: context "
    "deadline exceeded": "volumes_not_mounted",
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox image "
    '"registry.k8s.io/pause:3.9": rpc error: code = DeadlineExceeded desc = context deadline '
    "exceeded": "pause_image",
    'MountVolume.SetUp failed for volume "data" : rpc error: code = DeadlineExceeded desc = '
    "context deadline exceeded": "mount_failed",
    "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline "
    "exceeded": "deadline_exceeded",
    "Update plugin resources failed due to failed to write checkpoint file "
    '"kubelet_internal_checkpoint": write /var/lib/kubelet/x: no space left on device, which is '
    "unexpected.": "checkpoint_disk_full",
    "write /var/lib/kubelet/device-plugins/.x: no space left on device": "no_space",
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network "
    "sandbox k8s_web-0_shop_8b1a_0(72d5aa): error adding pod shop_web-0 to CNI network "
    '"multus-cni-network": plugin type="multus" name="multus-cni-network" failed (add): [shop/web-0'
    '/919b:devnet]: error adding container to network "devnet": failed to find plugin "macvlan" '
    "in path [/opt/cni/bin]": "plugin_binary_missing",
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox image "
    '"k8s.gcr.io/pause:3.1": failed to pull image "k8s.gcr.io/pause:3.1": failed to do request: '
    'Head "https://k8s.gcr.io/v2/pause/manifests/3.1": proxyconnect tcp: dial tcp 127.0.0.1:7890: '
    "connect: connection refused": "pause_image",
    "Pod Update plugin resources failed due to failed to write checkpoint file "
    '"kubelet_internal_checkpoint": open /var/lib/kubelet/device-plugins/.807306059: read-only file '
    "system, which is unexpected.": "checkpoint_read_only",
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    'mounting "/d" to rootfs: mkdirat /r: read-only file system: unknown': "shim_not_started",
    'MountVolume.SetUp failed for volume "d" : rpc error: code = Unavailable desc = connection '
    'error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:9500: connect: connection '
    'refused"': "mount_failed",
    "2m11s  Warning  FailedMount  pod/web-0  MountVolume.SetUp failed for volume "
    '"kube-api-access-x" : object "shop"/"kube-root-ca.crt" not registered': "kubelet_cache",
    "65s  Warning  OutOfpods  pod/web-0  Node didn't have enough resource: pods, requested: 1, "
    "used: 110, capacity: 110": "out_of_pods",
    "  Warning  UnexpectedAdmissionError  5s  kubelet, worker-1  Allocate failed due to can't "
    "allocate unregistered device nvidia.com/gpu, which is unexpected": "device_unregistered",
}
"""Messages as people copy them, and their entry."""


def test_each_sample_is_one_entry_however_it_is_wrapped() -> None:
    for entry in entries():
        assert entry.samples, entry.key
        for sample in entry.samples:
            escaped = f"rpc error: code = Unknown desc = {sample}".replace('"', '\\"')
            for text in (
                sample,
                f'{CONTAINERD}plugin type="p" failed (add): {sample}',
                f'  Warning  Failed  3m (x5 over 4m)  kubelet  {CRIO}"net": {MULTUS}{sample}',
                f'{KILLED}"{escaped}"',
                f'{CONTAINERD}plugin type="p" failed (add): {sample}'.replace('"', ""),
            ):
                assert [match.entry.key for match in matches(text)] == [entry.key], text


def test_each_pattern_has_a_sample_and_each_variable_part_a_pattern() -> None:
    assert len(entries()) >= 150
    for entry in entries():
        layers = [
            without_quotes(layer) for sample in entry.samples for layer in peel(sample).layers
        ]
        for pattern in entry.patterns:
            assert any(pattern.match(layer, lower_case(layer)) is not None for layer in layers), (
                pattern.text
            )
        assert entry.meaning
        assert entry.steps


def test_a_message_is_found_as_people_copy_it() -> None:
    for text, key in KNOWN.items():
        assert [match.entry.key for match in matches(text)] == [key], text
    for text in ("", "  ", "hello", "failed", "plugin", "no such file or directory", '"', "]"):
        assert find(text) is None, text


def test_the_layers_of_a_message_say_who_failed_and_for_what() -> None:
    peeled = peel(
        f'  Warning  FailedCreatePodSandBox  3m (x5 over 4m)  kubelet  {CRIO}"multus-cni-network": '
        f'{MULTUS}plugin type="macvlan" failed (add): {FULL}'
    )
    assert (peeled.reason, peeled.runtime, peeled.plugin, peeled.operation, peeled.network) == (
        "FailedCreatePodSandBox",
        "crio",
        "macvlan",
        "add",
        "storage",
    )
    assert (peeled.pod, peeled.sandbox_id, peeled.words) == ("shop/web-0", "72d5aa", FULL)
    assert (peeled.requested_ip, peeled.range_set) == (None, "10.1.1.2-10.1.1.9")

    shim = peel(
        f'{CONTAINERD}{SHIM}"storage": failed to find plugin "macvlan" in path [/opt/cni/bin]\': '
        'StdinData: {"plugins": [{"type": "bridge"}]}'
    )
    assert (shim.runtime, shim.plugin, shim.network) == ("containerd", "macvlan", "storage")
    assert shim.words == 'failed to find plugin "macvlan" in path [/opt/cni/bin]'

    data = " ".join(["123 34 99"] * 2000)
    thick = peel(
        f'{CONTAINERD}plugin type="multus-shim" name="multus-cni-network" failed (add): CmdAdd '
        "(shim): CNI request failed with status 400: '&{ContainerID:4f Path: "
        f'StdinData:[{data}]}} ContainerID:"4f" ERRORED: error configuring pod [shop/web-0] '
        'networking: [shop/web-0/919b:cbr0]: error adding container to network "cbr0": plugin '
        f'type="flannel" failed (add): failed to delegate add: {FULL}'
    )
    assert (thick.network, thick.plugin, thick.words) == ("cbr0", "flannel", FULL)

    # The name in the plugin's own block is not the network.
    egress = peel(f'{CONTAINERD}plugin type="egress-cni" name="egress-cni" failed (add): {FULL}')
    assert (egress.plugin, egress.plugin_name, egress.network) == ("egress-cni", "egress-cni", None)
    crio = peel(f'{CRIO}"crio": plugin type="bridge" name="other" failed (add): boom')
    assert (crio.network, crio.plugin_name, crio.words) == ("crio", "other", "boom")

    docker = peel(f"{DOCKER}boom")
    assert (docker.runtime, docker.pod, docker.sandbox_id) == ("docker", "shop/web-0", "9e8d7c")
    killed = peel(
        f'{KILLED}"rpc error: code = Unknown desc = failed to destroy network for sandbox '
        '\\"72d5\\": plugin type=\\"portmap\\" failed (delete): boom"'
    )
    assert (killed.operation, killed.plugin, killed.words) == ("delete", "portmap", "boom")
    asked = peel(
        "failed to allocate for range 0: requested IP address fd00::9 is not available in "
        "range set fd00::2-fd00::ff"
    )
    assert (asked.requested_ip, asked.range_set) == ("fd00::9", "fd00::2-fd00::ff")
    cached = peel('failed to set network "cbr0" cached result: write /x: no space left on device')
    assert cached.network == "cbr0"
    empty = peel(
        'failed to get network "cbr0" cached result: decoding version from network config: '
        "unexpected end of JSON input"
    )
    assert empty.network == "cbr0"


def test_the_values_of_a_message_never_reach_a_shell_unless_they_are_harmless() -> None:
    text = 'failed to set bridge addr: "{}" already has an IP address different from 10.1.1.1/24'
    (match,) = matches(text.format("cni0"))
    assert match.values == {"bridge": "cni0", "gateway": "10.1.1.1/24"}
    assert match.fill_in("ip link delete {bridge}") == "ip link delete cni0"
    for value in ("$(reboot)", "x;reboot", "-x", "`x`", "a&b", "a|b", ">x", ""):
        (match,) = matches(text.format(value))
        assert match.fill_in("ip link delete {bridge}") == "ip link delete BRIDGE", value


def test_messages_that_differ_in_ids_addresses_and_numbers_have_one_key() -> None:
    alike = [
        [
            f'{CONTAINERD.replace("4fab2c", sandbox)}plugin type="bridge" failed (add): failed to '
            f"allocate for range 0: requested IP address {ip} is not available in range set "
            "10.1.1.2-10.1.1.254"
            for sandbox, ip in (("4f", "10.1.1.7"), ("0123456789abcdef", "10.1.1.200"))
        ],
        [
            f'failed to reserve sandbox name "{name}": name "{name}" is reserved for "{sandbox}"'
            for name, sandbox in (("web-0_shop_8b1a_0", "4" * 64), ("db_shop_97c2_13", "e" * 64))
        ],
        [
            f'failed to open netns "/var/run/netns/cni-{uid}": failed to Statfs: no such file'
            for uid in (
                "8c0338cc-0000-1111-2222-333344445555",
                "97c2e1f0-aaaa-bbbb-cccc-dddd00001111",
            )
        ],
        [f"PLEG is not healthy: last seen {age} ago" for age in ("3m12.5s", "1h4m2s", "59s")],
        [f"{MULTUS.replace('web-0', pod)}boom" for pod in ("web-0", "a")],
    ]
    keys = [{without_variable_parts(text) for text in texts} for texts in alike]
    assert [len(of_alike) for of_alike in keys] == [1] * len(alike), keys
    assert len(set[str]().union(*keys)) == len(alike)


def test_events_are_told_apart_and_a_message_on_several_lines_is_one() -> None:
    lines = [
        "  Normal   Scheduled               61s  default-scheduler  Assigned shop/web-0",
        f"  Warning  FailedCreatePodSandBox  60s  kubelet            {CONTAINERD}boom",
        "  Warning  FailedMount             3s   kubelet            unmounted volumes=[data]",
    ]
    assert events("\n".join(lines)) == lines
    assert events("failed to set bridge addr:\ncould not set") == [
        "failed to set bridge addr: could not set"
    ]


def test_a_hostile_text_costs_no_more_than_a_long_one() -> None:
    for part in (
        *('"', "[", ": ", '\\"', "a", "failed to ", "k8s_", "1:", "*,", '"_', "1.1.1.1,", "1h"),
        *('plugin type="', "rpc error: code = X desc = ", "error adding pod ", "Warning Xxxx pod/"),
        *("CNI request failed with status 400: '", "failed to create pod network sandbox ", "\n"),
        *(pattern.text[:40] for entry in entries()[::10] for pattern in entry.patterns),
    ):
        text = part * (65536 // len(part))
        find(text)
        peeled = peel(text)
        assert max(map(len, peeled.layers)) <= 8192, part
        assert len(peeled.layers) <= 16, part
        assert len(without_variable_parts(text)) <= 8192 + 400, part
