"""Makes every mistake of test_bad_input.py and prints docs/mistakes.md: what the program says to each.

python tests/bad_input/mistakes_page.py > docs/mistakes.md
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from test_bad_input import CASES, Case, make_folder, prepared  # noqa: E402

from runs import dp  # noqa: E402

HEAD = """# Mistakes, and what is said to them

Every mistake ends with exit code 2 and a message that says where, which value, why, and what to do; no file is touched
before. Each of these is made by `tests/bad_input`; `make mistakes` writes this page anew.
"""


def message_of(case: Case) -> str:
    """What `dp train` says, with the folder of the run left out."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()) as said:
        folder = Path(name).resolve()
        make_folder(folder)
        os.chdir(folder)
        code = dp(*prepared(folder, case), "-v", "ERROR")
        os.chdir("/")
    assert code == 2, said.getvalue()
    return said.getvalue().replace(str(folder), "/path/to/run").strip()


if __name__ == "__main__":
    print(HEAD)
    for title, case in CASES.items():
        print(f"**{title}**\n\n```\n{message_of(case)}\n```\n")
