"""nodeleak: finds pod addresses that a Kubernetes node has leaked, and related problems of the node.

    sources      read files, /proc, docker and the API server      ->  Snapshot (frozen, gaps included)
    checks       classify, confirm, detect                (pure)   ->  Report
    cleanup      guards, then releases under host-local's locks    ->  Cleaning
    exporters    text, JSON, metrics, log, page; kube_events tells the API server

`app` wires them and runs the loop; `cli` has a module for each command.
"""
