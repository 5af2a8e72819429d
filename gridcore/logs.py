"""One log line format for all processes: time, level, process, text.

Lines go to stderr, which the launcher's terminal or the journal collects. Prompt text and keys
never appear in them.
"""

import logging
import os
import sys

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}


class _Formatter(logging.Formatter):
    """Several lines are written for each request, so the second is worked out once for all."""

    def __init__(self, process: str, *, colour: bool) -> None:
        super().__init__()
        self._process = process
        self._colour = colour
        self._second = -1
        self._stamp = ""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides
        second = int(record.created)
        if second != self._second:
            self._second, self._stamp = second, self.formatTime(record, "%H:%M:%S")
        return (
            f"{self._stamp}.{int(record.msecs):03d} {record.levelname:<7} "
            f"{self._process:<16} {record.message}"
        )

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        colour = _COLOURS.get(record.levelno) if self._colour else None
        return f"{colour}{line}\x1b[0m" if colour else line


def setup_logging(process: str, level: str = "info") -> logging.Logger:
    """Send this process's log lines to stderr; return the ``gridcore`` logger."""
    # Looked up for every line otherwise, and printed by none.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    handler.setFormatter(_Formatter(process, colour=colour))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logger = logging.getLogger("gridcore")
    logger.setLevel(_LEVELS[level])
    return logger
