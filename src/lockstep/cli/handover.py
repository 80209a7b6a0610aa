"""What this program does not do itself and DeePMD-kit does: its other verbs and its other backends, handed over.

The arguments reach DeePMD-kit unchanged, in a process that takes this one's place, so that signals, exit codes and
launchers see no difference. `dp` is this program's even where DeePMD-kit was installed last and wrote a script of that
name: DeePMD-kit loads the modules that packages name under its entry point `deepmd.backend` before it looks at its
arguments, and `lockstep.takeover` is one of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from lockstep.errors import ForeignModelError, UserError

OURS = "pytorch"
BACKENDS = {
    **dict.fromkeys(("tf", "tensorflow"), "tensorflow"),
    **dict.fromkeys(("tf2", "tensorflow2"), "tensorflow2"),
    **dict.fromkeys(("pt", "pytorch"), OURS),
    **dict.fromkeys(("pt-expt", "pytorch-exportable"), "pytorch-exportable"),
    "jax": "jax",
    **dict.fromkeys(("pd", "paddle"), "paddle"),
    **dict.fromkeys(("dp", "np", "numpy", "dpmodel"), "dpmodel"),
}
"""Every spelling of DeePMD-kit's backends, with its name."""
VERBS = {
    "transfer": "pass the parameters of one TensorFlow model to another",
    "eval-desc": "write the descriptors of a data system",
    "embed": "write embeddings of a data system",
    "compress": "compress a model, for faster dynamics",
    "convert-from": "convert a model of an older version",
    "change-bias": "change the energy bias of a model",
    "train-nvnmd": "train an NVNMD model",
    "gui": "serve DP-GUI",
    "convert-backend": "turn a model file into one for another backend, such as model.dp into model.pth for LAMMPS",
    "pretrained": "download a pretrained model",
}
"""Verbs that only DeePMD-kit has."""
_MODULES = {"tensorflow": "tensorflow", "tensorflow2": "tensorflow", "jax": "jax", "paddle": "paddle"}
_EXTRAS = {"tensorflow": "cpu", "tensorflow2": "cpu", "jax": "jax"}
_RUNNER = "lockstep.cli.deepmd_kit"


def chosen_backend(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """The backend that a command line asks for before its verb, or DP_BACKEND; ours where nothing is said."""
    backend = environ.get("DP_BACKEND", OURS).lower()
    words = iter(arguments)
    for word in words:
        if word in ("-b", "--backend"):
            backend = next(words, "")
        elif word.startswith("--backend="):
            backend = word.partition("=")[2]
        elif word.startswith("--") and word[2:] in BACKENDS:
            backend = word[2:]
        elif not word.startswith("-"):
            break
    return BACKENDS.get(backend, backend)


def verb_of(arguments: Sequence[str]) -> str | None:
    """The first word that is no option."""
    words = iter(arguments)
    for word in words:
        if word in ("-b", "--backend"):
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def hand_over_if_foreign(arguments: Sequence[str]) -> None:
    """Become DeePMD-kit where it is asked for; return where the command line is this program's own."""
    backend, verb = chosen_backend(arguments), verb_of(arguments)
    if verb is None:
        return
    if backend not in BACKENDS.values():
        known = ", ".join(dict.fromkeys(BACKENDS.values()))
        raise UserError(f"there is no such backend; possible: {known}", where="--backend", value=backend)
    if backend == OURS and verb not in VERBS:
        return
    what = f"dp {verb}" if backend == OURS else f"dp --{backend} {verb}"
    require_for_hand_over(what, backend, verb)
    if verb == "train" and backend == "tensorflow":
        refuse_workers_that_would_not_meet(what)
    tell(f"{what} is done by DeePMD-kit {metadata.version('deepmd-kit')}, to which this command line is handed over")
    become(arguments)


def require_for_hand_over(what: str, backend: str, verb: str) -> None:
    """Stop with the line that installs what is missing."""
    wanted = ["deepmd", *filter(None, [_MODULES.get(backend)])]
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if not missing:
        return
    extra = _EXTRAS.get(backend)
    remedy = f"pip install 'deepmd-kit[{extra}]==3.2.*'" if extra else "pip install 'deepmd-kit==3.2.*'"
    if backend == "paddle":
        remedy += " paddlepaddle"
    if verb == "train" and backend != OURS:
        remedy += f"; the same input trains here without --{backend}: dp train"
    raise UserError(f"needs {' and '.join(_TITLES.get(name, name) for name in missing)}", where=what, remedy=remedy)


def refuse_workers_that_would_not_meet(what: str) -> None:
    """DeePMD-kit's TensorFlow backend joins workers by Horovod; without it each would train alone."""
    from lockstep.parallel import launchers

    context = launchers.detect(os.environ)
    found = importlib.util.find_spec("horovod")
    folders = (found.submodule_search_locations if found else None) or []
    if context.size == 1 or any(True for folder in folders for _ in Path(folder, "tensorflow").glob("mpi_lib*.so")):
        return
    raise UserError(
        f"{context.launcher} started {context.size} workers, which DeePMD-kit's TensorFlow backend joins by Horovod; "
        "it is not installed for TensorFlow, so that each would train alone, over the same files",
        where=what,
        remedy="HOROVOD_WITH_TENSORFLOW=1 pip install horovod; or dp train, which needs no Horovod to join them",
    )


_TITLES = {"deepmd": "DeePMD-kit", "tensorflow": "TensorFlow", "jax": "JAX", "paddle": "Paddle"}


def tell(message: str) -> None:
    """One line in the form of the log; rank 0 alone says it."""
    ranks = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "SLURM_PROCID")
    rank = next((os.environ[name] for name in ranks if name in os.environ), "0")
    if rank == "0":
        print(f"DEEPMD INFO    {message}", file=sys.stderr, flush=True)


def become(arguments: Sequence[str]) -> NoReturn:
    """Run DeePMD-kit's command line in this process's place."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", _RUNNER, *arguments])


def evaluate_there(error: ForeignModelError, args: argparse.Namespace, words: Sequence[str]) -> int:
    """Test, show or compare models that only DeePMD-kit evaluates, with its own verbs; returns their exit code."""
    if importlib.util.find_spec("deepmd") is None or args.verb not in _MODEL_OPTIONS:
        raise error
    from lockstep.interop.kit.files import as_pt

    option, name = _MODEL_OPTIONS[args.verb]
    given = getattr(args, name)
    models = given if isinstance(given, list) else [given]
    tell(f"{', '.join(models)}: evaluated by DeePMD-kit {metadata.version('deepmd-kit')}")
    with ExitStack() as stack:
        paths = [str(stack.enter_context(as_pt(model, getattr(args, "head", None)))) for model in models]
        replaced = dict(zip(models, paths, strict=True))
        line = [replaced.get(word, word) for word in words]
        if not set(models) <= set(words):
            line += [option, *paths]
        return subprocess.run([sys.executable, "-m", _RUNNER, "--pt", *_without_backend(line)], check=False).returncode


_MODEL_OPTIONS = {"test": ("-m", "model"), "model-devi": ("-m", "models"), "show": ("", "INPUT")}
"""How a verb names its models: the option, and what argparse keeps it under."""


def _without_backend(words: Sequence[str]) -> list[str]:
    verb = verb_of(words)
    return list(words[words.index(verb) :]) if verb else list(words)
