"""The stress test: sandboxes come, go, die and leak around one store while cleaners release from it.

It knows a cleaner only as a command. docker and host-local are the real ones; what libcni would write is written here.
"""
