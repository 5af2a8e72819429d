"""The deterministic world: a virtual clock around the brain, and everyone it talks to.

Cards, runtimes, gateways, clients and faults are drawn from one seed; no process, no socket, no
wall clock. Independent checkers watch what goes in and out of the brain (``checkers.py``).
"""
