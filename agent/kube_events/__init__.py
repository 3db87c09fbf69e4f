"""What the API server is told, best effort: Events, and a condition of the node. Nobody waits for it.

`messages`, `rate_limit` and `condition` say what is due after a sync; `queue` delivers it in a thread of its own,
through `writer`, the only module that writes to the API server.
"""
