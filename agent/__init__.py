"""nodeleak: says what the records of a Kubernetes node disagree about.

    sources     read: files, docker, the API server, /proc   ->  Snapshot (frozen, gaps included)
    occupancy   what each reservation is            (pure)   ->  Scene
    detectors   Scene -> findings                   (pure)
    grace       findings that last                  (pure)   ->  Report
    exporters   log, metrics, table, JSON, HTTP

cycle is one trip down this page; daemon makes the trips; cli is the front door.
"""
