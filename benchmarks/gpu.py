"""What a machine with a GPU can tell, in one go: the tests on the device, then the speed beside DeePMD-kit there.

    python benchmarks/gpu.py               tests, then speed: some minutes, and some GB for DeePMD-kit the first time
    python benchmarks/gpu.py --no-peers    tests alone

Ends with a summary in runs/gpu/summary.md that is meant to be pasted into an issue. No GPU has been tried by those who
wrote this: what you see is news. Without a GPU it says so, and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "runs" / "gpu"


@dataclass(frozen=True)
class Tests:
    """How the tests went: those that passed, and by name those that failed or were left out."""

    passed: int
    failed: list[str]
    skipped: list[str]
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true", help="leave the comparison with DeePMD-kit out")
    arguments = parser.parse_args()
    refuse_without_gpu()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    tests = run_tests()
    speed = "not measured" if arguments.no_peers else run_peers()
    text = summary(tests, speed)
    (OUTPUT / "summary.md").write_text(text)
    print(f"\n{text}\nThe same is in {OUTPUT / 'summary.md'}: please paste it into an issue.")
    sys.exit(1 if tests.failed else 0)


def refuse_without_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        return
    build = torch.version.cuda
    reason = "this build of PyTorch is for CPUs" if build is None else f"PyTorch (for CUDA {build}) sees no GPU here"
    print(f"make gpu needs a GPU: {reason}", file=sys.stderr)
    sys.exit(2)


def run_tests() -> Tests:
    """The tests of tests/gpu on CUDA."""
    report = OUTPUT / "tests.xml"
    report.unlink(missing_ok=True)
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", f"--junitxml={report}"],
        cwd=ROOT,
        env={**os.environ, "LOCKSTEP_DEVICE_TESTS": "cuda"},
        check=False,
    )
    return read_report(report, time.perf_counter() - began)


def read_report(report: Path, seconds: float) -> Tests:
    if not report.exists():
        return Tests(0, ["pytest did not finish"], [], seconds)
    passed, failed, skipped = 0, [], []
    for case in ET.parse(report).getroot().iter("testcase"):
        name = str(case.get("name"))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (left_out := case.find("skipped")) is not None:
            skipped.append(f"{name}: {left_out.get('message')}")
        else:
            passed += 1
    return Tests(passed, failed, skipped, seconds)


def run_peers() -> str:
    """Speed of this program and of DeePMD-kit's PyTorch backend on the same GPU, as a table."""
    command = [sys.executable, "benchmarks/peers/run.py", "setup", "speed", "--programs", "lockstep", "pytorch"]
    (OUTPUT / "results.json").unlink(missing_ok=True)
    done = subprocess.run([*command, "--core", "-1", "--output", str(OUTPUT)], cwd=ROOT, check=False)
    if done.returncode:
        return f"benchmarks/peers ended with {done.returncode}: see above"
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    from tables import speed_section

    return speed_section(json.loads((OUTPUT / "results.json").read_text()))


def summary(tests: Tests, speed: str) -> str:
    """All of it, as Markdown."""
    lines = ["## On a GPU", "", *about(), ""]
    lines += [f"{tests.passed} tests passed, {len(tests.failed)} failed, {tests.seconds:.0f} s"]
    lines += [f"- failed: {name}" for name in tests.failed]
    lines += [f"- left out: {name}" for name in tests.skipped]
    return "\n".join([*lines, "", "Beside DeePMD-kit on the same GPU:", "", speed, ""])


def about() -> list[str]:
    import torch

    from lockstep.version import __version__

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [
        f"- Lockstep {__version__} {commit.strip()}, Python {platform.python_version()}, {platform.platform()}",
        f"- PyTorch {torch.__version__}, CUDA {torch.version.cuda}, driver {_driver()}",
        *(f"- GPU {number}: {card.name}, {card.total_memory / 2**30:.0f} GiB" for number, card in enumerate(cards)),
        f"- {len(os.sched_getaffinity(0))} cores",
    ]


def _driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


if __name__ == "__main__":
    main()
