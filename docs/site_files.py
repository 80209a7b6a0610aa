"""What mkdocs does besides (mkdocs.yml names this file), so that the site is whole without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")
# What lets the search work in pages that were opened as files; the theme would fetch it from elsewhere.
_THEIRS, _OURS = re.compile(r'"https://[^"]*/iframe-worker/shim"'), '"search_from_files.js"'


def on_files(files: Files, config: Any) -> Files:
    """Add the files that links of the form ../examples/... lead to."""
    from mkdocs.structure.files import File

    linked = {name for page in files.documentation_pages() for name in _OUTSIDE.findall(page.content_string)}
    for name in sorted(linked):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let those links lead to where the files are in the site."""
    return _OUTSIDE.sub(r"](\1", markdown)


def on_post_page(output: str, **_: Any) -> str:
    return _THEIRS.sub(_OURS, output)


def on_post_template(output_content: str, **_: Any) -> str:
    return _THEIRS.sub(_OURS, output_content)
