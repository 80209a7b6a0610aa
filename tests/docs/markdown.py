"""The fenced blocks of the Markdown pages, and what is to be done with each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"file: (\S+)")
_NOT_RUN = re.compile(r"not run: .+")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: where it begins in the page.
        mark: the comment right before it: `not run: <reason>`, `file: <name>`, or anything else.
    """

    line: int
    language: str
    text: str
    mark: str

    @property
    def runs(self) -> bool:
        return self.language in ("bash", "python") and not _NOT_RUN.fullmatch(self.mark)

    @property
    def file(self) -> str | None:
        """The file that a reader is asked to save the block as."""
        match = _FILE.fullmatch(self.mark)
        return match[1] if match else None

    def script(self) -> str:
        """What a shell does to follow the page."""
        if self.file:
            return _document(f"cat > {self.file}", self.text)
        if not self.runs:
            return ""
        return self.text if self.language == "bash" else _document("python -", self.text)


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, match.start()) + 1, match["language"], match["text"], match["mark"] or "")
        for match in _FENCE.finditer(text)
    ]


def _document(command: str, text: str) -> str:
    return f"{command} <<'END_OF_BLOCK'\n{text}END_OF_BLOCK\n"
