"""The catalog of messages of other programs: each sample is one entry, and layers come off."""

from agent.model.catalog import entries, matching, peel

CONTAINERD = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = "
    'failed to setup network for sandbox "4fab2c": '
)
CRIO = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network "
    "sandbox k8s_web-0_shop_8b1ad9a6_0(72d5aa): error adding pod shop_web-0 to CNI network "
)
MULTUS = (
    'plugin type="multus" name="multus-cni-network" failed (add): [shop/web-0/919b:storage]: '
    'error adding container to network "storage": '
)
FULL = (
    "failed to allocate for range 0: no IP addresses available in range set: 10.42.1.1-10.42.1.254"
)


def test_each_sample_is_one_entry_however_it_is_wrapped() -> None:
    killed = 'error killing pod: failed to "KillPodSandbox" for "8b1ad9a6" with KillPodSandboxError'
    for entry in entries():
        assert entry.samples, entry.key
        for sample in entry.samples:
            escaped = f"rpc error: code = Unknown desc = {sample}".replace('"', '\\"')
            for text in (
                sample,
                f"  Warning  FailedMount  3m (x5 over 4m)  kubelet  {sample}",
                f'{CONTAINERD}plugin type="p" failed (add): {sample}',
                f'{CRIO}"net": {MULTUS}{sample}',
                f'{killed}: "{escaped}"',
                sample.upper() if "plugin" not in sample else sample,
            ):
                assert [found.key for found in matching(text)] == [entry.key], text


def test_each_pattern_has_a_sample() -> None:
    for entry in entries():
        layers = [layer for sample in entry.samples for layer in peel(sample).layers]
        for pattern in entry.patterns:
            assert any(pattern.match(layer) is not None for layer in layers), pattern.text
