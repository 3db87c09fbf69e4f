"""Stand-ins for what surrounds the agent on a node, so that the demo and the figures need neither docker nor a cluster.

nodes says what is on a node, in the words of the node; host, engine and apiserver show it as its files, docker and the
API server would. Only the standard library is used, and nothing of the agent: who reads must not write.
"""
