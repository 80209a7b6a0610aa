"""From what the input file says under `systems` to the list of systems, in one order on every machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.data import lmdb
from lockstep.data.hdf5 import Hdf5Files, find_groups
from lockstep.errors import DataError


def find_systems(
    systems: str | Path | Sequence[str | Path],
    rglob_patterns: Sequence[str] | None = None,
    input_folder: str | Path | None = None,
    option: str = "systems",
) -> list[str]:
    """All systems that the entries of `systems` stand for.

    An entry, alone or in a list, is a system, or a folder (HDF5 file or group) searched at every depth:
    whatever holds a `type.raw` is a system, including the entry itself, and an LMDB environment holds some. Entries
    keep their order and a system listed twice counts twice; what is found within one entry is sorted by path, so that
    all ranks agree whatever order their file system lists names in. With `rglob_patterns` only folders matching one
    of the patterns below the entry are taken. Relative paths start from the current folder;
    `input_folder` and `option`, the place in the input file, only serve to explain a path that is not there.
    """
    entries = [systems] if isinstance(systems, (str, Path)) else list(systems)
    if not entries:
        raise DataError("no systems are listed", where=option, remedy="name at least one system folder")
    found: list[str] = []
    files = Hdf5Files()
    try:
        for entry in map(str, entries):
            if not os.path.exists(entry.partition("#")[0]) and not os.path.isdir(entry):
                raise _missing(entry, input_folder, option)
            found += _expand(entry, rglob_patterns, option, files)
    finally:
        files.close()
    return found


def is_hdf5(system: str) -> bool:
    """Whether a found system lies in an HDF5 file: those always carry a `#`, unless a folder is so named."""
    return "#" in system and not os.path.isdir(system) and not lmdb.is_lmdb(system)


def _expand(entry: str, patterns: Sequence[str] | None, option: str, files: Hdf5Files) -> list[str]:
    if lmdb.is_lmdb(entry):
        return [entry]
    if os.path.isdir(entry):
        found = _match(entry, patterns) if patterns else _walk(entry)
    else:
        found = find_groups(entry, files)
    if not found:
        raise DataError(
            "no system in it: nothing there "
            + ("matches `rglob_patterns` and " if patterns else "")
            + "has a type.raw",
            where=os.path.abspath(entry),
            remedy=f"name in {option} a folder that holds type.raw and set.000, or a folder above such folders",
        )
    return found


def _walk(top: str) -> list[str]:
    """Folders with a `type.raw`. Links are followed, but no folder is taken twice, under whatever names."""
    found: list[str] = []
    pending, linked = [top], set[str]()
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as listing:
                members = [member for member in listing if not member.name.startswith("set.")]
        except OSError as error:
            raise DataError(f"cannot be searched ({error.strerror})", where=os.path.abspath(folder)) from error
        if any(member.name == "type.raw" for member in members):
            found.append(folder)
        if any(member.name == "data.mdb" for member in members):
            found += lmdb.find_groups(folder)
        for member in members:
            if member.is_symlink():
                target = _target(member.path)
                if target is not None and target not in linked:
                    linked.add(target)
                    pending.append(member.path)
            elif member.is_dir():
                pending.append(member.path)
    found.sort()
    return list({os.path.realpath(path): path for path in reversed(found)}.values())[::-1] if linked else found


def _target(link: str) -> str | None:
    """The folder that a link leads to; None where there is none, or no longer."""
    try:
        target = os.path.realpath(link)
    except OSError:
        return None
    return target if os.path.isdir(target) else None


def _match(top: str, patterns: Sequence[str]) -> list[str]:
    matches = {str(path) for pattern in patterns for path in Path(top).rglob(pattern)}
    return sorted(path for path in matches if os.path.isfile(os.path.join(path, "type.raw")))


def _missing(entry: str, input_folder: str | Path | None, option: str) -> DataError:
    remedy = "correct the path"
    if not os.path.isabs(entry):
        remedy += "; relative paths start from the folder in which the command is run"
        if input_folder is not None:
            beside = os.path.abspath(os.path.join(input_folder, entry.partition("#")[0]))
            if os.path.exists(beside):
                remedy = f"it does exist beside the input file, as {beside}: run the command in that folder"
                remedy += ", or give the absolute path"
    reason = f"no such system: there is no {os.path.abspath(entry.partition('#')[0])}"
    return DataError(reason, where=option, value=entry, remedy=remedy)
