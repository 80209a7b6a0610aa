"""The programs that are compared, and the folders they are installed in.

DeePMD-kit comes from PyPI, each backend in a venv of its own: its two backends want different versions of shared
libraries, and it has a command named `dp` too.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from measure import ROOT, pinned, say

DEEPMD_KIT = "3.2.0"
VERSIONS = (
    "import importlib.metadata as m, sys; "
    "print(', '.join(n + ' ' + m.version(n) for n in sys.argv[1:]) + ', Python ' + sys.version.split()[0])"
)


@dataclass(frozen=True)
class Program:
    """A program that trains.

    Attributes:
        bin: folder of its commands.
        command: name of its command, with the option that chooses the backend.
        install: what pip is asked for; nothing where the venv is not ours to make.
        packages: distributions whose versions matter.
        removed: files taken out after the installation, relative to `site-packages`.
    """

    key: str
    title: str
    bin: Path
    command: tuple[str, ...]
    packages: tuple[str, ...]
    install: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def call(self, *arguments: str) -> list[str]:
        """The command line of one of its verbs."""
        return [str(self.bin / self.command[0]), *self.command[1:], *arguments]

    def shown(self, core: int) -> str:
        """The training's command as a user would type it."""
        return f"{' '.join(pinned([*self.command, 'train', 'input.json'], core))}"

    def versions(self) -> str:
        answer = subprocess.run(
            [str(self.bin / "python"), "-c", VERSIONS, *self.packages], capture_output=True, text=True, check=True
        )
        return answer.stdout.strip()


LOCKSTEP = Program(
    "lockstep",
    "Lockstep",
    Path(sys.executable).parent if Path(sys.executable).with_name("lockstep").exists() else ROOT / ".venv" / "bin",
    ("lockstep",),
    ("lockstep-dp", "torch", "numba", "numpy"),
)
TENSORFLOW = Program(
    "tensorflow",
    "DeePMD-kit, TensorFlow",
    ROOT / ".venv-peer-tf" / "bin",
    ("dp", "--tf"),
    ("deepmd-kit", "tensorflow-cpu", "numpy"),
    (f"deepmd-kit[cpu]=={DEEPMD_KIT}", "tensorflow-cpu==2.21.0", "mpich"),
)
PYTORCH = Program(
    "pytorch",
    "DeePMD-kit, PyTorch",
    ROOT / ".venv-peer-pt" / "bin",
    ("dp", "--pt"),
    ("deepmd-kit", "torch", "numpy"),
    (f"deepmd-kit=={DEEPMD_KIT}", "torch==2.13.0", "e3nn", "mpich"),
    # The library of compiled operators was built for torch 2.11 and stops the program on any other. Training of
    # se_e2_a uses none of it; where the file is absent DeePMD-kit goes on without.
    ("deepmd/lib/libdeepmd_op_pt.so",),
)
PROGRAMS = {program.key: program for program in (LOCKSTEP, TENSORFLOW, PYTORCH)}


def set_up(program: Program) -> None:
    """Install a program, once."""
    venv = program.bin.parent
    ready = venv / ".ready"
    if not program.install or ready.exists():
        return
    say(f"setting up {venv.name}: a few minutes, once")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(program.bin / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *program.install], check=True)
    for path in program.removed:
        for file in venv.glob(f"lib/python*/site-packages/{path}"):
            file.unlink()
    ready.touch()
