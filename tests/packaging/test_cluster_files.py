"""Containers and job scripts are what the tools that read them take: each is checked by a tool of its kind."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SCRIPTS = sorted((ROOT / "examples" / "jobs").glob("*.sh"))
# Of Kubeflow's training operator, version 1: what its definition of a PyTorchJob allows.
_NUMBER, _TEXT = {"type": "integer"}, {"type": "string"}
_REPLICAS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["replicas", "template"],
    "properties": {
        "replicas": _NUMBER,
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object"},
    },
}
PYTORCH_JOB = {
    "type": "object",
    "additionalProperties": False,
    "required": ["pytorchReplicaSpecs"],
    "properties": {
        "nprocPerNode": _TEXT,
        "elasticPolicy": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                **dict.fromkeys(("minReplicas", "maxReplicas", "maxRestarts", "rdzvPort"), _NUMBER),
                **dict.fromkeys(("rdzvHost", "rdzvId"), _TEXT),
                "rdzvBackend": {"enum": ["c10d", "etcd", "etcd-v2"]},
            },
        },
        "runPolicy": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
                **dict.fromkeys(("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"), _NUMBER),
            },
        },
        "pytorchReplicaSpecs": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"Master": _REPLICAS, "Worker": _REPLICAS},
        },
    },
}


def tool(name: str) -> str:
    path = BIN / name
    if not path.exists():
        assert "LOCKSTEP_REQUIRE_PEER" not in os.environ, f"{name} is in the extra `dev`"
        pytest.skip(f"no {name}: pip install '.[dev]'")
    return str(path)


def complaints(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_there_is_a_script_for_each_kind_of_job() -> None:
    names = [path.name for path in SCRIPTS]
    assert names == ["pbs.sh", "slurm-cpu.sh", "slurm-gpu.sh", "slurm-requeue.sh"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_job_scripts(script: Path) -> None:
    assert complaints("bash", "-n", str(script)) == ""
    assert complaints(tool("shellcheck"), "--exclude=SC1091", str(script)) == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_their_command_lines_are_understood(script: Path) -> None:
    lines = [line for line in script.read_text().splitlines() if " dp " in f" {line}" and not line.startswith("#")]
    assert len(lines) == 1
    assert_understood(lines[0].partition(" dp ")[2].split())


def assert_understood(words: list[str]) -> None:
    given = build_parser().parse_args(words)
    assert given.restart == "auto", "a job that comes again goes on"


def test_dockerfile() -> None:
    assert complaints(tool("hadolint"), "docker/Dockerfile") == ""
    copied = [
        line.split()[1:-1] for line in (ROOT / "docker" / "Dockerfile").read_text().splitlines() if "COPY" in line
    ]
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name in (word for words in copied for word in words):
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored, f"{name} is not in what Docker is given"


def test_apptainer_definition() -> None:
    tool("spython")
    from spython.main.parse.parsers import SingularityParser

    recipe = SingularityParser(str(ROOT / "docker" / "apptainer.def")).parse()["spython-base"]
    assert recipe.fromHeader == "python:3.11-slim"
    assert all((ROOT / line.split()[0]).exists() for line in recipe.files)
    script = "\n".join(recipe.install)
    assert "install_torch.py" in script
    assert complaints("bash", "-n", "-c", script) == ""
    assert "dp --version" in script, "its test"


@pytest.fixture
def job() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "examples" / "jobs" / "pytorchjob.yaml").read_text())  # type: ignore[no-any-return]


def check_job(job: dict[str, Any]) -> None:
    """Raise unless the operator would take the job, and Kubernetes its pods."""
    import jsonschema
    import kubernetes_validate

    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    jsonschema.validate(job["spec"], PYTORCH_JOB)
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **replicas["template"]}
        kubernetes_validate.validate(pod, "1.30", strict=True)


def test_kubernetes_job(job: dict[str, Any]) -> None:
    tool("kubernetes-validate")
    check_job(job)
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch", "the operator looks for this name"
    command = container["command"]
    assert_understood(command[command.index("dp") + 1 :])


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "elasticPolicy", "minReplica"),
        ("spec", "pytorchReplicaSpecs", "Worker", "template", "spec", "volumen"),
    ],
)
def test_a_word_that_kubernetes_does_not_know_is_noticed(path: tuple[str, ...], job: dict[str, Any]) -> None:
    tool("kubernetes-validate")
    wrong = section = copy.deepcopy(job)
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = 1
    with pytest.raises(Exception, match=path[-1]):
        check_job(wrong)
