"""A service that is only a process: what the launcher's tests start in place of real ones.

It appends what happens to it to ``--log``, one JSON object a line. Behaviour by option; the
launcher adds ``--parent-fd``.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from gridcore.group.parent import watch_parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--parent-fd", type=int)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--fail", action="store_true", help="end at once with status 7")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--linger", type=float, default=0.0, help="seconds between SIGTERM and end")
    options = parser.parse_args()

    def tell(what: str) -> None:
        line = json.dumps({"name": options.name, "what": what, "pid": os.getpid()})
        fd = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def on_term(_number: int, _frame: FrameType | None) -> None:
        tell("term")
        if options.deaf:
            return
        time.sleep(options.linger)
        tell("end")
        os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    tell("start")
    if options.fail:
        return 7
    watch_parent(options.parent_fd)
    if options.listen_fd is not None:
        threading.Thread(target=serve_health, args=(options.listen_fd,), daemon=True).start()
    while True:
        signal.pause()


def serve_health(fd: int) -> None:
    listener = socket.socket(fileno=fd)
    listener.setblocking(True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + str(os.getpid()).encode())


if __name__ == "__main__":
    sys.exit(main())
