"""Fakes of the agent's surroundings, so that the demo, tests and benchmarks need neither docker nor a cluster.

nodes describes what is on a node; host, engine and apiserver present it as files, docker and the API server do. They
use only the standard library and no code of the agent, so that the agent cannot confirm its own mistakes.
"""
