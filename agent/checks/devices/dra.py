"""Extended resources that DRA serves instead of a device plugin (KEP-5004). Pure.

The scheduler maps the request of a pod to a claim of DRA. The node's capacity is 0 then, as the
kubelet leaves it when it drops the resource of a device plugin, or the node does not list the
resource at all. Neither is a fault.
"""

from agent.checks.devices.view import DeviceView
from agent.model.snapshot import Pod, Unavailable, known_or


def dra_resources(view: DeviceView) -> frozenset[str]:
    """Return the resources that DRA serves on this node, and that need no device plugin.

    Empty if the pods are unavailable.
    """
    if isinstance(view.snapshot.pods, Unavailable):
        return frozenset()

    by_dra = {resource for resource in view.dropped if _has_driver(resource, view)}
    by_plugins = set[str]()
    for pod in known_or(view.snapshot.pods, ()):
        served = dra_resources_of(pod, view)
        by_dra |= served
        if pod.live:
            by_plugins.update(set(pod.wants) - served)
    return frozenset(
        resource for resource in by_dra - by_plugins if not _has_plugin(resource, view)
    )


def dra_resources_of(pod: Pod, view: DeviceView) -> set[str]:
    """Return the resources that a pod requests and that DRA serves to it, as far as is known.

    A server may not show the mapping. Then a pod that runs, has claims and holds no device of a
    plugin proves as much, unless the node has some of the resource to give.
    """
    served = set(pod.dra_resources)
    if pod.has_resource_claims and pod.started is not None:
        held = {entry.resource for entry in view.plugins.allocations if entry.pod_uid == pod.uid}
        unserved = (resource for resource in pod.wants if _may_have_none(resource, view))
        served |= set(unserved) - held
    return served


def _may_have_none(resource: str, view: DeviceView) -> bool:
    """Whether the node's status lists none of a resource, also an old one, or is unavailable."""
    node = known_or(view.snapshot.node, None)
    if node is None:
        return True
    return any(device.resource == resource and not device.allocatable for device in node.devices)


def _has_driver(resource: str, view: DeviceView) -> bool:
    """Return whether a driver by the name of a resource is there, as `gpu.nvidia.com`.

    It need not serve a pod at the moment.
    """
    prefix, _, name = resource.partition("/")
    names = (prefix, f"{name}.{prefix}")
    return any(
        driver == known or driver.startswith(f"{known}-")
        for driver in view.plugins.drivers
        for known in names
    )


def _has_plugin(resource: str, view: DeviceView) -> bool:
    """Whether a device plugin serves a resource on this node now."""
    if resource in view.node_devices:
        return view.node_devices[resource].allocatable > 0
    return bool(view.healthy.get(resource)) and view.is_connected(resource) is not False
