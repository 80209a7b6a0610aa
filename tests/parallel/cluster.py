"""Small clusters on one machine: hosts made of network namespaces, and a Slurm of one node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import quiet_port


def _need_root(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(programs)}; missing: {missing or 'root'}")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def two_hosts() -> Iterator[list[list[str]]]:
    """Two hosts with names and addresses of their own (10.77.0.1 and .2), joined by a cable.

    Yields the command prefix that runs a program on each.
    """
    _need_root("ip", "unshare", "hostname")
    tag = f"ls{os.getpid()}"
    names = [f"{tag}a", f"{tag}b"]
    try:
        for name in names:
            _ip("netns", "add", name)
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"network namespaces cannot be made here: {problem.stderr.decode()}")
    try:
        _ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for number, name in enumerate(names, start=1):
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
            _ip("-n", name, "link", "set", name, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield [
            ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname host{n}; exec "$@"', "sh"]
            for n, name in enumerate(names)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


_SLURM = """ClusterName=test
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerType=sched/builtin
KillWait=3
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[str]:
    """A Slurm of this node alone; yields the path of its configuration, for SLURM_CONF."""
    _need_root("slurmctld", "slurmd", "srun", "munged")
    (folder / "spool").mkdir(parents=True)
    (folder / "state").mkdir()
    port, node_port = quiet_port(), quiet_port()
    configuration = folder / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    configuration.write_text(_SLURM.format(folder=folder, host=host, port=port, node_port=node_port))
    environ = os.environ | {"SLURM_CONF": str(configuration)}
    _start_munge()
    try:
        for daemon in ("slurmctld", "slurmd"):
            subprocess.run([daemon, "-f", str(configuration)], env=environ, check=True, capture_output=True, timeout=20)
        _wait_until_idle(environ)
        yield str(configuration)
    finally:
        for daemon in ("slurmd", "slurmctld"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / f"{daemon}.pid").read_text()), signal.SIGTERM)


def _start_munge() -> None:
    if subprocess.run(["munge", "-n"], check=False, capture_output=True).returncode == 0:
        return
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    command = ["su", "-s", "/bin/sh", "munge", "-c", "munged --force"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("munged, which Slurm needs, does not start here")


def _wait_until_idle(environ: dict[str, str]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        answer = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environ, check=False, capture_output=True, text=True)
        if answer.stdout.strip() == "idle":
            return
        time.sleep(0.2)
    pytest.fail(f"Slurm did not come up: {answer.stdout} {answer.stderr}")
