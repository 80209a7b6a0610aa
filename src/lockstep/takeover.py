"""`dp` stays this program's where DeePMD-kit was installed last: see `lockstep.cli.handover`.

DeePMD-kit imports this module while its own `dp` script starts, before arguments are looked at. Nobody else's program
is touched: not `python -m deepmd`, not a script that imports DeePMD-kit, not this program handing over.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def started_as_dp() -> bool:
    """Whether this process is the `dp` script of an environment, and not yet this program."""
    return Path(sys.argv[0]).name == "dp" and "lockstep.cli" not in sys.modules


if started_as_dp():
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "lockstep.cli.main", *sys.argv[1:]])
