"""A training from beginning to end: the command `dp train`, and the function for scripts and notebooks."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lockstep.config.foreign import parse_any_input
from lockstep.config.input import parse_raw_input
from lockstep.config.parse import read_file
from lockstep.errors import UserError
from lockstep.training.options import Options, checkpoint_prefix
from lockstep.training.types import with_types

if TYPE_CHECKING:
    from lockstep.config import AnyInput
    from lockstep.observe.log import Logging
    from lockstep.parallel.context import WorkerContext
    from lockstep.tasks import Task

log = logging.getLogger(__name__)

Source = str | Path | Mapping[str, Any]
"""An input file, or its content."""
Tell = Callable[[UserError], None]


@dataclass(frozen=True)
class Result:
    """Where a finished run has left its files.

    Attributes:
        curve: the learning curve.
        checkpoints: path and beginning of the names of the checkpoints; every verb and `lockstep.DP` take it.
        output: the input with all defaults.
    """

    curve: Path
    checkpoints: Path
    output: Path


def train(
    source: Source,
    *,
    task: type[Task] | None = None,
    restart: str | None = None,
    init_model: str | None = None,
    init_frz_model: str | None = None,
    skip_neighbor_stat: bool = False,
    output: str = "out.json",
    profile: bool = False,
    timeline: str | None = None,
    ranks_per_frame: int | str | None = None,
    log_path: str | None = None,
    log_level: str = "INFO",
    mpi_log: str = "master",
) -> Result:
    """Train as an input file says, or a dictionary with the same content; alone or under any launcher.

    Files go to the current folder, as those of the command do. A mistake is a `lockstep.errors.UserError`. Under a
    launcher, a rank that fails after the ranks have met ends the whole job, as it must.

    Args:
        task: what to train instead of what the model section describes: a class of your own. The sections `model`
            (but for its `type_map`) and `loss` are then for it to understand.
        others: as the options of `dp train`.
    """
    options = Options(
        restart=restart,
        init_model=init_model,
        init_frz_model=init_frz_model,
        skip_neighbor_stat=skip_neighbor_stat,
        output=output,
        profile=profile,
        timeline=timeline,
        ranks_per_frame=ranks_per_frame,
    )
    config = run_training(source, task, options, LogOptions(log_path, log_level, mpi_log))
    return Result(Path(config.training.disp_file), checkpoint_prefix(config), Path(output))


@dataclass(frozen=True)
class LogOptions:
    """What the command line says about the log."""

    path: str | None = None
    level: str = "INFO"
    mode: str = "master"


def run_training(
    source: Source, task: type[Task] | None, options: Options, logs: LogOptions, tell: Tell | None = None
) -> AnyInput:
    """Join the other workers, if there are any, and train; returns the input.

    `tell` says a mistake, for all workers once; where there is none, the log does.
    """
    from lockstep.observe.log import configure_logging, parse_level
    from lockstep.parallel import launchers
    from lockstep.parallel.opening import timeout_of
    from lockstep.training.collisions import refuse_collisions

    context = launchers.detect(os.environ)
    path = Path(logs.path) if logs.path else None
    records = configure_logging(parse_level(logs.level), path, logs.mode, context)
    tell = tell or (lambda error: log.error("%s", error))
    try:
        # Before anything heavy is loaded, so that a typing mistake costs no waiting; and once: it may be a pipe.
        config, folder = _read(source, raw=task is not None)
        refuse_collisions(_files(source, config, options, logs))
        timeout = timeout_of(os.environ)
    except UserError as error:
        _end_together(context, error, tell)
    try:
        _train(config, folder, options, task, context, timeout, records, tell)
    except UserError as error:
        records.tell_file(str(error))
        raise
    finally:
        records.close()
    return config


def _files(source: Source, config: AnyInput, options: Options, logs: LogOptions) -> dict[str, str | None]:
    """The files that a run reads or writes, by what names them."""
    return {
        "INPUT": None if isinstance(source, Mapping) else str(source),
        "--output": options.output,
        "--log-path": logs.path,
        "--timeline": options.timeline,
        "training.disp_file": config.training.disp_file,
        "training.stat_file": config.training.stat_file,
        "training.save_ckpt": config.training.save_ckpt,
        "validating.full_val_file": config.validating.full_val_file if config.validating.full_validation else None,
    }


def _end_together(context: WorkerContext, mistake: UserError, tell: Tell) -> NoReturn:
    """Meet the other workers to end with them, so that none waits for this one and the user is told once."""
    from lockstep.device import visible_gpus
    from lockstep.parallel.devices import device_type
    from lockstep.parallel.opening import open_group

    if context.size > 1:
        open_group(context, device_type(os.environ, len(visible_gpus())), mistake=mistake, tell=tell)
    raise mistake


def _read(source: Source, raw: bool) -> tuple[AnyInput, Path]:
    parse = parse_raw_input if raw else parse_any_input
    if isinstance(source, Mapping):
        return parse(with_types(dict(source))), Path()
    return parse(with_types(read_file(Path(source))), source=str(source)), Path(source).parent


def _train(
    config: AnyInput,
    folder: Path,
    options: Options,
    task: type[Task] | None,
    context: WorkerContext,
    timeout: float,
    records: Logging,
    tell: Tell,
) -> None:
    from lockstep.device import visible_gpus
    from lockstep.parallel.devices import device_type, place_group
    from lockstep.parallel.opening import open_group
    from lockstep.parallel.summary import training_summary
    from lockstep.parallel.watch.faults import guarded
    from lockstep.products import log_choice
    from lockstep.training.session import train

    device = device_type(os.environ, len(visible_gpus()))
    group = open_group(context, device, timeout, tell=tell)
    records.join(group)
    with guarded(group), _process_as_before():
        placement = place_group(group, device)
        placement.apply()
        for line in training_summary(group.context, placement, os.environ):
            log.info(line)
        if placement.device == "cpu":
            log_choice()
        train(config, folder, options, group, placement, task)
        group.close()


@contextmanager
def _process_as_before() -> Iterator[None]:
    """What a training changes for the whole process is put back: a notebook goes on after it."""
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.unfreeze()
