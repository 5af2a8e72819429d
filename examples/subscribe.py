#!/usr/bin/env python3
"""Print every decision of a running daemon, with nothing but pyzmq and msgspec.

python examples/subscribe.py /run/user/1000/gridcore/events
"""

import sys

import msgspec
import zmq

socket = zmq.Context().socket(zmq.SUB)
socket.subscribe(b"note.")
socket.connect(f"ipc://{sys.argv[1]}")
while True:
    topic, _, payload = socket.recv().partition(b"\0")
    event = msgspec.msgpack.decode(payload)
    print(event["seq"], event["note"]["verb"], event["note"]["text"], flush=True)
