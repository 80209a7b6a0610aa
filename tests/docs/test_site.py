"""The site that `make site` builds: all pages, no broken link, and nothing fetched from elsewhere when it is read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from markdown import ROOT

MKDOCS = ROOT / ".venv-site" / "bin" / "mkdocs"
# Attributes by which a page fetches something. Links that a reader follows are another matter.
FETCHING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


def build(folder: Path, pages: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [str(MKDOCS), "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=pages, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        assert "LOCKSTEP_REQUIRE_PEER" not in os.environ, "make test sets up .venv-site"
        pytest.skip("no .venv-site: make site")
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Fetched(HTMLParser):
    """Addresses that a page fetches by itself, and whether a theme's script would fetch one for it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.diagrams = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses.append(given.get(FETCHING.get(tag, "")) or "")
        self.diagrams |= "mermaid" in (given.get("class") or "")


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = sorted(site.glob("**/*.html"))
    assert len(pages) > 10
    for page in pages:
        fetched = Fetched(page)
        assert [address for address in fetched.addresses if re.match(r"(https?:)?//", address)] == [], page.name
        assert not fetched.diagrams, f"{page.name} has a diagram, whose script would come from elsewhere"
    for sheet in site.glob("**/*.css"):
        assert not re.search(r"(url\(|@import\s*)[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_what_a_page_needs_is_there(site: Path) -> None:
    for page in site.glob("*.html"):
        if page.name != "404.html":
            for address in filter(None, Fetched(page).addresses):
                assert (page.parent / address.partition("?")[0]).exists(), f"{page.name}: {address}"


@pytest.mark.parametrize(
    ("page", "holds"),
    [
        ("architecture.html", 'src="pictures/layers.png"'),
        ("parallel.html", 'src="pictures/blocks.png"'),
        ("performance.html", 'src="pictures/race.png"'),
        ("faults.html", "<td>torchrun</td>"),
        ("models.html", "<td>native</td>"),
        ("own-model.html", 'href="examples/own_model/train.py"'),
    ],
)
def test_pages_that_must_be_there(page: str, holds: str, site: Path) -> None:
    assert holds in (site / page).read_text(encoding="utf-8")


def test_the_linked_examples_come_along(site: Path) -> None:
    assert (site / "examples" / "own_model" / "train.py").read_text() == (
        ROOT / "examples" / "own_model" / "train.py"
    ).read_text()


def test_a_broken_link_ends_the_build(site: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[there](nowhere.md) and [here](#nothing)\n")
    (tmp_path / "docs" / "site_files.py").write_text((ROOT / "docs" / "site_files.py").read_text())
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = build(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert "nowhere.md" in done.stdout + done.stderr
    assert "#nothing" in done.stdout + done.stderr
