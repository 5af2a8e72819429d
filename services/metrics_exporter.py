"""The metrics exporter: reads the event socket, serves ``/metrics``. It decides nothing.

Killing it changes nothing for anyone; its counters are the scheduler's, so a restart keeps them.
"""

import asyncio
import logging
from collections.abc import Sequence

from gridcore import __version__
from gridcore.config.address import parse_listen
from gridcore.group.service import run_service, service_parser, watch_for_stop
from gridcore.instance import Instance
from gridcore.metrics.exposition import CONTENT_TYPE, Exposition
from gridcore.metrics.feed import EventFeed
from gridcore.metrics.server import MetricsServer

log = logging.getLogger("gridcore.metrics")


async def serve(instance: Instance, parent_fd: int | None) -> None:
    """Serve until a signal, or until the launcher is gone."""
    stopping = watch_for_stop(parent_fd)
    feed = EventFeed(instance.runtime.events, Exposition(__version__))
    server = MetricsServer(feed.page, CONTENT_TYPE)
    await server.listen_unix(instance.runtime.metrics)
    await _listen_tcp(server, instance.config.metrics.listen)
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(feed.run())
            await stopping.wait()
            reading.cancel()
    finally:
        await server.close()


async def _listen_tcp(server: MetricsServer, listen: str | None) -> None:
    """A taken port costs the extra address, not the metrics: the API's /metrics still works."""
    if listen is None:
        return
    host, port = parse_listen(listen)
    try:
        await server.listen_tcp(host, port)
    except OSError as error:
        log.warning(
            "metrics.listen %s cannot be used (%s): metrics are served at /metrics of the API "
            "only; choose another port, or null for none",
            listen,
            error.strerror or error,
        )
    else:
        log.info("metrics at http://%s/metrics", listen)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = service_parser("metrics-exporter", __doc__).parse_args(argv)
    return run_service(arguments, lambda instance: serve(instance, arguments.parent_fd))


if __name__ == "__main__":
    raise SystemExit(main())
