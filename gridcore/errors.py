"""Errors that end in a sentence for a person.

``GridcoreError`` says what happened, the value, the limit and the knob. A broken invariant is
a programming error and is never caught except to dump the journal.
"""


class GridcoreError(Exception):
    """Something a person can act on; ``str(error)`` is the whole message."""

    exit_code = 1


class ConfigError(GridcoreError):
    """The configuration cannot be used; one line per problem in ``problems``."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class AlreadyRunningError(GridcoreError):
    """Another daemon holds the lock; it has not been touched."""

    exit_code = 3


class ListenError(GridcoreError):
    """The HTTP address cannot be bound."""

    exit_code = 4


class ServiceFailedError(GridcoreError):
    """A service of the group could not be kept running."""

    exit_code = 5


class InvariantViolation(AssertionError):  # noqa: N818 - names a law, not an input error
    """The brain broke one of its own rules; it stops rather than decide wrongly."""
