"""`make gpu` on a machine without a GPU, and what it would say on one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_benchmark"] = module
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environ, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("make gpu needs a GPU: ")


def test_the_summary_tells_what_passed_what_failed_and_what_was_left_out(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="test_a"/><testcase name="test_b"><failure message="no"/></testcase>'
        '<testcase name="test_c"><skipped message="two ranks need two GPUs"/></testcase></testsuite></testsuites>'
    )
    text = gpu.summary(gpu.read_report(report, 12.0), "| step | 1.0 |")
    assert "1 tests passed, 1 failed, 12 s" in text
    assert "- failed: test_b" in text
    assert "- left out: test_c: two ranks need two GPUs" in text
    assert f"PyTorch {torch.__version__}" in text
    assert gpu.read_report(tmp_path / "none.xml", 1.0).failed == ["pytest did not finish"]
