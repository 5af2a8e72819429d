"""Every service ends an unreadable instance with one line and exit code 1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "module", ["gateway", "scheduler", "supervisor", "gpu_monitor", "metrics_exporter"]
)
def test_an_unreadable_instance_is_one_line(module: str, tmp_path: Path) -> None:
    instance = tmp_path / "instance.json"
    instance.write_text("{ half")
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"services.{module}", "--instance", str(instance)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert str(instance) in done.stderr
