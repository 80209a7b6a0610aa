"""The pages agree with the program and with each other."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lockstep.config.reference import reference_markdown

sys.path.insert(0, str(Path(__file__).parent))
from markdown import PAGES, ROOT

_LINK = re.compile(r"\[[^\]]*\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")


def test_input_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "input.md").read_text(encoding="utf-8")
    assert written == reference_markdown() + "\n", "run `make docs`"


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be reached."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), f"{target} is not there"
        assert not anchor or anchor in anchors(path), f"{target} has no heading {anchor}"
