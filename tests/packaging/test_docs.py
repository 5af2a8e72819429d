"""Pages lead somewhere: every relative link in a Markdown file names a file that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_front_page_leads_to_the_others() -> None:
    linked = {(ROOT / link).resolve() for link in LINK.findall((ROOT / "README.md").read_text())}
    for name in ("config.example.yaml", "docs/architecture.md", "CONTRIBUTING.md"):
        assert (ROOT / name).resolve() in linked


def test_the_service_file_has_the_lines_that_matter() -> None:
    unit = (ROOT / "deploy/gridcore.service").read_text().splitlines()
    for line in ("Type=notify", "KillMode=mixed", "WantedBy=default.target"):
        assert line in unit
