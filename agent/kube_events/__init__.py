"""What the API server is told, best effort: Events, and a condition of the node. Nobody waits for it.

`notices`, `pace` and `condition` say what is due after a round; `courier` delivers it in a thread of its own, through
`writer`, the only module that writes to the API server.
"""
