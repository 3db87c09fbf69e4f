"""nodeleak: finds leaked pod addresses of a Kubernetes node, and related problems of the node.

    sources      read files, /proc, runtimes and the API server  ->  Snapshot (frozen, with gaps)
    checks       classify, confirm, detect (pure)                ->  Report
    cleanup      guards, then releases under host-local's locks  ->  Cleaning
    exporters    text, JSON, metrics, log, page; kube_events writes to the API server

`app` wires them and runs the loop; `cli` has a module for each command.
"""
