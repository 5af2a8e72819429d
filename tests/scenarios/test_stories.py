"""Every story, acted out and compared with its whole log.

``REGENERATE_STORIES=1 pytest tests/scenarios`` writes the logs anew, to be reviewed as a diff;
the ``must`` and ``never`` lines are written by hand, and are checked then as well.
"""

import os
from pathlib import Path

import pytest

from tests.support.story import Story, StoryError, stories

FOLDER = Path(__file__).parent
REGENERATE = bool(os.environ.get("REGENERATE_STORIES"))


@pytest.mark.parametrize("path", stories(FOLDER), ids=lambda path: path.stem)
def test_the_story_is_as_it_was_told(path: Path) -> None:
    story = Story(path)
    log = story.run()
    story.check_claims(log)
    if REGENERATE:
        story.rewrite(log)
    else:
        assert log == story.log


@pytest.mark.parametrize("path", stories(FOLDER), ids=lambda path: path.stem)
def test_a_story_makes_claims_of_its_own(path: Path) -> None:
    story = Story(path)
    assert story.must, "a log nobody claims anything about can be regenerated into nonsense"
    assert story.head.startswith("# "), "a story begins by saying what it tells"


def test_a_broken_claim_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.story"
    path.write_text("# x\nmust   load >> evict\nnever  refuse\nlog\n", encoding="utf-8")
    story = Story(path)
    story.check_claims(["load a", "evict b"])
    with pytest.raises(StoryError, match="no line for 'evict'"):
        story.check_claims(["evict b", "load a"])
    with pytest.raises(StoryError, match="never 'refuse'"):
        story.check_claims(["load a", "evict b", "refuse c"])
