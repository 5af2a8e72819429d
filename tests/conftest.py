"""Rules for every test of the suite."""

import os
from collections.abc import Generator

import pytest

ON_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """On CI the real models are there: a skipped ``llama`` test is a failure, not a green dot."""
    report = yield
    must_run = ON_CI and item.get_closest_marker("llama") is not None
    if must_run and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped on CI, where it must run: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that skips itself: nothing of it would be seen."""
    report = yield
    if ON_CI and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"a whole file skipped on CI: {report.longrepr}"
    return report
