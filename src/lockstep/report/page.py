"""From the data of a page to its HTML: everything inline, nothing to be fetched."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_PLOTTING = "uPlot 1.6.32"


def make_page(data: Mapping[str, Any], live: bool = False) -> str:
    """The page; a live one asks its own server for new data every few seconds, any other asks nobody."""
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "CONNECT": "'self'" if live else "'none'",
        "PLOTTING": _PLOTTING,
        "PLOTTING_LICENSE": _static("uPlot.LICENSE"),
        "PLOTTING_CSS": _static("uPlot.min.css"),
        "PLOTTING_JS": _static("uPlot.iife.min.js"),
        "CSS": _static("page.css"),
        "JS": _static("page.js"),
        "DATA": _embedded({**data, "live": live}),
    }
    # In one pass: what is put in may hold such marks too.
    return re.sub(r"@@([A-Z_]+)@@", lambda mark: parts[mark[1]], _static("page.html"))


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser can mistake for the end of its script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _static(name: str) -> str:
    return files("lockstep.report").joinpath("static", name).read_text(encoding="utf-8")
