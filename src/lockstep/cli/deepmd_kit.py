"""DeePMD-kit's command line, as `python -m lockstep.cli.deepmd_kit`: its own, with a torch it was not built for too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run DeePMD-kit with this process's arguments."""
    from lockstep.interop.kit.operators import leave_out_operators

    leave_out_operators()
    from deepmd.main import main as deepmd_main

    sys.argv[0] = "dp"
    deepmd_main()


if __name__ == "__main__":
    main()
