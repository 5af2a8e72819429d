"""The profile file under several writers: real processes, no lost measurement."""

import subprocess
import sys
from pathlib import Path

from gridcore.store.profiles import Conditions, ProfileStore

ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from pathlib import Path
from gridcore.store.profiles import Conditions, ProfileStore
path, name = Path(sys.argv[1]), sys.argv[2]
store = ProfileStore(path)
shared = Conditions(build="shared", card="c", file="f")
for n in range(20):
    own = Conditions(build=f"{name}-{n}", card="c", file="f")
    store.loaded(own, name, load_ns=n, footprint_bytes=n, free_bytes=None)
    store.grew(shared, "shared", int(name) * 1000 + n)
"""


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)], cwd=ROOT)
        for n in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    store = ProfileStore(path)
    assert len(store.all()) == 4 * 20 + 1
    shared = store.get(Conditions(build="shared", card="c", file="f"))
    assert shared.footprint_bytes == 3019
    assert not list(tmp_path.glob("*.bad"))
