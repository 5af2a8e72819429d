"""A launcher whose services are stubs, as a process of its own: ``DIRECTORY LISTEN [OPTIONS]``.

OPTIONS is JSON: stub options by service name. Everything but the children is the real thing.
"""

import asyncio
import json
import sys
from pathlib import Path

from gridcore.errors import GridcoreError
from gridcore.group.daemon import Daemon
from gridcore.group.group import ServiceSpec, Stage
from gridcore.group.listen import address_of, open_listener
from gridcore.group.lock import FileLock
from gridcore.group.restart import RestartLimits
from gridcore.group.roster import end_remains
from gridcore.ids import PeerId
from gridcore.logs import setup_logging
from gridcore.units import NS_PER_MS, NS_PER_S

STAGES = {
    "scheduler": Stage.REST,
    "gateway-0": Stage.GATEWAYS,
    "supervisor": Stage.SUPERVISOR,
    "gpu-monitor": Stage.REST,
}
LIMITS = RestartLimits(
    delays_ns=(50 * NS_PER_MS, 20 * NS_PER_MS, 20 * NS_PER_MS), stable_ns=60 * NS_PER_S
)


async def serve(directory: Path, listen: str, options: dict[str, list[str]]) -> None:
    listener = open_listener(listen)
    fd = listener.fileno()

    def spec(name: str, stage: Stage) -> ServiceSpec:
        argv = [sys.executable, "-P", "-m", "tests.support.service_stub", "--name", name]
        argv += ["--log", str(directory / "log"), *options.get(name, [])]
        gateway = stage is Stage.GATEWAYS
        if gateway:
            argv += ["--listen-fd", str(fd)]
        return ServiceSpec(
            name=PeerId(name),
            argv=tuple(argv),
            stage=stage,
            grace_ns=3 * NS_PER_S,
            pass_fds=(fd,) if gateway else (),
        )

    async def show_ready() -> None:
        sys.stdout.write(f"{address_of(listener)}\n")
        sys.stdout.flush()

    daemon = Daemon(
        [spec(name, stage) for name, stage in STAGES.items()],
        control=directory / "control",
        listener=listener,
        listen=address_of(listener),
        roster=directory / "group.json",
        on_ready=show_ready,
        limits=LIMITS,
    )
    await daemon.run()


def main() -> int:
    directory, listen = Path(sys.argv[1]), sys.argv[2]
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    setup_logging("launcher")
    try:
        with FileLock(directory / "lock", owned="state directory"):
            end_remains(directory / "group.json", patience_s=1.0)
            asyncio.run(serve(directory, listen, options))
    except GridcoreError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
