"""What keeps the processes of one daemon together: locks, the listening socket, restarts, the end.

``services/launcher.py`` wires these; a service uses ``parent`` only. Nothing here knows models.
"""
