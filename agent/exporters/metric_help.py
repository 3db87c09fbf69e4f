"""What each metric is: the HELP of the exposition, and what `nodeleak explain` says."""

from typing import Final

PREFIX: Final = "nodeleak_"
HELP: Final = {
    "build_info": "The running agent.",
    "mode_info": "What the agent may do to the node.",
    "reservations": "Entries in host-local's directory, by state.",
    "range_addresses": "Addresses that the network can give to pods.",
    "range_free_addresses": "Addresses that are not reserved.",
    "leaks_confirmed_total": "Leaked reservations confirmed since the agent started, by likely cause.",
    "findings": "Current findings; phase candidate: not confirmed yet.",
    "oldest_finding_timestamp_seconds": "When the oldest confirmed finding of the detector began, or was first seen.",
    "device_plugin_registered": "Whether the kubelet has healthy devices of the resource; for `other`: of all of its "
    "resources.",
    "device_plugin_socket_present": "Whether the plugin socket of the resource exists; for `other`: of all of its "
    "resources.",
    "device_plugin_registration_delay_seconds": "Time from the last kubelet start to the registration of the resource; "
    "for `other`: the longest.",
    "rejected_pods": "Pods that the kubelet rejected for a device and that still exist; absent where there are none.",
    "kubelet_start_timestamp_seconds": "When the kubelet started.",
    "source_up": "Whether the source was read in the last sync.",
    "source_last_read_timestamp_seconds": "When a source that is unavailable was last read.",
    "source_read_seconds_total": "Time spent reading a source.",
    "sync_seconds": "Time of a sync: read the sources, run the checks, export the report.",
    "sync_failures_total": "Syncs in which a source was unavailable (read) or a detector failed (check).",
    "internal_errors_total": "Exceptions that the agent survived, by the part that raised them. "
    "Each is a bug.",
    "last_sync_timestamp_seconds": "When the last sync started.",
    "releases_total": "Addresses released since the agent started.",
    "releases_refused_total": "Addresses that were refused, counted once per sync, by the first "
    "reason.",
    "release_failures_total": "Release attempts that passed every guard but failed, by reason.",
    "lock_wait_seconds": "Time to acquire host-local's locks.",
    "lock_held_seconds": "Time that host-local's locks were held; new pods wait for an address meanwhile.",
    "journal_bytes": "Size of the journal of releases.",
    "cleanup_halted": "Whether cleanup is halted because a released container reappeared.",
    "watch_restarts_total": "Restarted API server watches, by cause.",
    "watch_regressions_total": "API server objects older than a version seen before.",
}
"""By name, without the prefix."""
