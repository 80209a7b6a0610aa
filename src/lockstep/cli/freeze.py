"""`dp freeze`: a checkpoint becomes a model file for other programs."""

from __future__ import annotations

import argparse
import importlib.util
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lockstep.cli.options import HelpFormatter, add_log_options, logged
from lockstep.errors import ForeignModelError, UserError

if TYPE_CHECKING:
    from lockstep.model import Potential

log = logging.getLogger(__name__)

_SUFFIX = ".dp"
_KIT = (".pth", ".pt2")
"""Suffixes of DeePMD-kit's PyTorch backend, written where it is installed."""
_FOREIGN = (".pb", ".pth", ".pt", ".pt2", ".pte", ".json", ".savedmodel", ".savedmodeltf", ".hlo")


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "freeze",
        help="turn a checkpoint into a model file",
        description="Write the model of a checkpoint in DeePMD-kit's exchange format, from which DeePMD-kit makes "
        "files for LAMMPS and other programs: dp convert-backend model.dp model.pth",
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "-c",
        "--checkpoint-folder",
        "--checkpoint",
        default=".",
        metavar="CHECKPOINT",
        help="the folder of a run, a prefix such as model.ckpt, or a checkpoint file",
    )
    parser.add_argument("-o", "--output", default="frozen_model", help="the model file; .dp is added where it lacks it")
    parser.add_argument("--head", metavar="MODEL", help="which model of a checkpoint that holds several")
    parser.add_argument("--ema", action="store_true", help="the running average of the weights (training.enable_ema)")
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the checkpoint, write the model."""
    with logged(args):
        path = _target(args.output)
        from lockstep.interop.deepmd import save_dp
        from lockstep.interop.loading import load_potential

        try:
            potential = load_potential(args.checkpoint_folder, args.ema)
        except ForeignModelError as error:
            path = _frozen_there(error, args, path)
        else:
            if args.head is not None:
                raise UserError("there is one model, and it has no name", where="--head", value=args.head)
            _refuse_other_file(path)
            if path.suffix == _SUFFIX:
                save_dp(potential, path)
            else:
                _converted_there(potential, path)
        log.info("Model written to %s%s", path, ", of the running average of the weights" if args.ema else "")
    return 0


def _frozen_there(error: ForeignModelError, args: argparse.Namespace, path: Path) -> Path:
    """The model of a checkpoint of one of DeePMD-kit's models."""
    if importlib.util.find_spec("deepmd") is None:
        raise error
    from lockstep.interop.kit.files import freeze

    return freeze(args.checkpoint_folder, path, args.head, args.ema)


def _converted_there(potential: Potential, path: Path) -> None:
    """A native model as a file of DeePMD-kit's PyTorch backend, by way of the exchange format."""
    from lockstep.interop.deepmd import save_dp
    from lockstep.interop.descriptors import misread_elsewhere
    from lockstep.interop.kit.files import convert

    misread = misread_elsewhere(potential.config.descriptor, len(potential.type_map))
    if misread:
        remedy = "train with model.descriptor.type_one_side: true, or freeze to a .dp file for use here"
        raise UserError(misread, where="--output", value=str(path), remedy=remedy)
    with TemporaryDirectory(prefix="lockstep-") as folder:
        exchange = Path(folder) / "model.dp"
        save_dp(potential, exchange)
        convert(exchange, path)


def _target(output: str) -> Path:
    path = Path(output)
    if path.suffix in _KIT and importlib.util.find_spec("deepmd") is not None:
        return path
    if path.suffix in _FOREIGN:
        exchange = path.with_suffix(_SUFFIX)
        raise UserError(
            f"models are written in DeePMD-kit's exchange format ({_SUFFIX}) only",
            where="--output",
            value=output,
            remedy=f"dp freeze -o {exchange}; then with DeePMD-kit: dp convert-backend {exchange} {path}",
        )
    return path if path.suffix == _SUFFIX else path.with_name(path.name + _SUFFIX)


def _refuse_other_file(path: Path) -> None:
    """A model may be replaced by a newer one; anything else under that name is not ours to overwrite."""
    from lockstep.interop.exchange import is_exchange_file

    if path.exists() and path.suffix not in _KIT and not is_exchange_file(path):
        raise UserError(
            "there is something that is not a model: it is left alone",
            where="--output",
            value=str(path),
            remedy="move it away, or choose another name",
        )
