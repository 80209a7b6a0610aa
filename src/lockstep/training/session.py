"""From an input file and a group of ranks to a finished run: opens the data, wires up the loop, and runs it."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.checkpoint.store import POINTER, SUFFIX, Checkpoint, CheckpointStore, NullStore
from lockstep.config import Input
from lockstep.config.training import DataConfig
from lockstep.data import (
    DataSet,
    DpLoaderSet,
    MicroBatch,
    Plan,
    Stream,
    make_plan,
    steps_for_epochs,
    summary_lines,
    worker_count,
)
from lockstep.files import write_text
from lockstep.geometry import PairCache
from lockstep.geometry.cache import cache_budget
from lockstep.observe.budget import Budget, BudgetFile, NullFile, budget_path
from lockstep.observe.lcurve import LearningCurve, NullCurve
from lockstep.observe.live import Bar, NullBar, make_bar
from lockstep.observe.timeline import NullTracer, Tracer
from lockstep.observe.wishes import find_wishes, observed
from lockstep.optim.optimizer import Optimizer, make_optimizer
from lockstep.optim.schedule import make_schedule
from lockstep.parallel.agreement import check_same_setup, check_same_weights, share_weights
from lockstep.parallel.devices import Placement
from lockstep.parallel.gradients import GradientAverager
from lockstep.parallel.group import Group
from lockstep.parallel.opening import timeout_of
from lockstep.phases import GEOMETRY
from lockstep.tasks.energy.arrays import energy_arrays
from lockstep.tasks.energy.check import check_frames, check_labels
from lockstep.tasks.energy.loss import EnergyLoss
from lockstep.tasks.energy.prepare import Preparer, Sample
from lockstep.tasks.energy.spectral import Spectral, measure_difference
from lockstep.training import pace
from lockstep.training.aside import old_files, refuse_folders, set_aside
from lockstep.training.lock import RunLock
from lockstep.training.loop import Trainer
from lockstep.training.outputs import Display, Outputs
from lockstep.training.scalars import NullScalars, TensorBoard
from lockstep.training.starting import Options, Start, checkpoint_prefix, find_restart, make_start
from lockstep.training.state import restore_interval, restore_optimizer, run_info, run_tensors
from lockstep.training.validation import NoValidation, Validator

log = logging.getLogger(__name__)

_VALIDATION_SEED = 1
_COMPARED = 4
"""Micro-batches on which spline expansion and exact nets are compared in the end."""


def train(given: Input, folder: Path, options: Options, group: Group, placement: Placement) -> None:
    """Run the training that the input file describes, on this rank of `group`; `folder` is that of the file."""
    config = pace.scale_steps(given, group.size)
    group.progress.timeout = timeout_of(os.environ, config.training.timeout)
    wishes = find_wishes(options.profile, options.timeline, config.training)
    with _locked(config, group), observed(group, wishes, placement.device) as tracer, ExitStack() as stack:
        checkpoint = find_restart(config, options, group)
        cache = PairCache(cache_budget(config.training.cache_memory, group.context.local_size))
        plan = open_plan(config, config.training.training_data, "training", folder)
        validation = config.training.validation_data
        validation_plan = open_plan(config, validation, "validation", folder) if validation else None
        if validation_plan and not options.skip_neighbor_stat:
            check_frames(validation_plan, group)
        _check_same_setup(config, plan, checkpoint, group)
        start = make_start(config, plan, options, group, cache, checkpoint)
        start.potential.to(placement.device)
        share_weights(start.potential.state_dict().values(), group)
        wiring = _Wiring(start, plan, validation_plan, group, cache, tracer, stack, options, placement)
        trainer = wiring.trainer()
        gc.freeze()  # What is there now stays: no need to look through it again and again.
        trainer.run()
        wiring.report_difference()


@contextmanager
def _locked(config: Input, group: Group) -> Iterator[None]:
    """Keep other runs away from this run's files; the rank that writes holds the lock for all."""
    outputs = [checkpoint_prefix(config), Path(config.training.disp_file)]
    with RunLock(outputs if group.rank == 0 else []):
        group.barrier()
        yield


def open_plan(config: Input, data: DataConfig, kind: str, folder: Path) -> Plan:
    """Open the systems of a section of the input file and settle how they are drawn from."""
    where = f"training.{kind}_data"
    dataset = DataSet(
        data.systems,
        config.model.type_map,
        energy_arrays(config.model.fitting_net),
        rglob_patterns=data.rglob_patterns,
        input_folder=folder,
        option=f"{where}.systems",
    )
    plan = make_plan(dataset, data.batch_size, data.sys_probs, auto_prob=data.auto_prob, where=where)
    for line in summary_lines(kind, plan):
        log.info(line)
    return plan


def _check_same_setup(config: Input, plan: Plan, checkpoint: Checkpoint | None, group: Group) -> None:
    """Every rank has read its own copy of everything; they must be the same."""
    setup = {
        "input file": config.dump(),
        "training data": plan.stream(0).state_dict(),
        "checkpoint": None if checkpoint is None else (checkpoint.step, checkpoint.info.get("stream")),
    }
    # Some may have read for longer than others.
    with group.progress.allow(math.inf):
        check_same_setup(setup, group)


def _prepare_folder(start: Start, options: Options, group: Group) -> None:
    """Write out.json, and move the files of an earlier run out of the way of a new one.

    The last thing before the first step: a run that cannot begin leaves everything as it was.
    """
    if group.rank == 0:
        curve = start.config.training.disp_file
        refuse_folders({"training.disp_file": curve, "--output": options.output})
        if start.checkpoint is None:
            files = [Path(curve), Path(options.output), Path(POINTER), *filter(None, [budget_path(curve)])]
            set_aside(old_files(checkpoint_prefix(start.config), SUFFIX, files))
        write_text(options.output, json.dumps(start.config.dump(), indent=2) + "\n")
    group.barrier()


@dataclass(frozen=True)
class StreamClock:
    """How far the stream of micro-batches is after a step: the same on all ranks."""

    first_step: int
    first_position: int
    per_step: int

    def position(self, step: int) -> int:
        return self.first_position + (step - self.first_step) * self.per_step


class _Wiring:
    """Makes the parts of a run and connects them. Files are closed by `stack`."""

    def __init__(
        self,
        start: Start,
        plan: Plan,
        validation_plan: Plan | None,
        group: Group,
        cache: PairCache,
        tracer: Tracer | NullTracer,
        stack: ExitStack,
        options: Options,
        placement: Placement,
    ) -> None:
        self.start, self.config, self.group, self.stack, self.options = start, start.config, group, stack, options
        self.placement = placement
        self.plan, self.validation_plan, self.cache, self.tracer = plan, validation_plan, cache, tracer
        self.writes = group.rank == 0
        self.pace = pace.Pace.of(self.config, group.size, start.step, start.saved("pace"))
        self.validation_cache = PairCache(
            cache_budget(start.config.training.cache_memory, group.context.local_size) // 4
        )
        self.stream = self._stream()
        self.clock = StreamClock(start.step, self.stream.position, self.pace.per_step)
        self.spectral = Spectral(
            start.potential,
            self.config.model.descriptor.spectral,
            start.s_max,
            self.clock.position,
            start.saved("spectral"),
        )

    def trainer(self) -> Trainer:
        """The whole run, ready to go."""
        config, training, group, potential = self.config, self.config.training, self.group, self.start.potential
        scheduled = self._numb_steps()
        numb_steps = scheduled - self.pace.offset
        factor = pace.worker_factor(config.learning_rate.scale_by_worker, group.size)
        micro_batches = self.clock.position(numb_steps)
        for line in pace.report(config, factor, self.pace, numb_steps, micro_batches, self.plan):
            log.info(line)
        log.info("spectral embedding: %s", self.spectral.describe())
        schedule = make_schedule(config.learning_rate, scheduled, factor, self.pace.offset)
        loss = EnergyLoss(config.loss, schedule.start_lr)
        check_labels(self.plan.dataset, loss)
        optimizer = make_optimizer(potential.named_parameters(), config.optimizer, group)
        if self.start.checkpoint is not None:
            restore_optimizer(optimizer, self.start.checkpoint)
        loader = self._loader()
        return Trainer(
            potential=potential,
            loss=loss,
            schedule=schedule,
            optimizer=optimizer,
            averager=GradientAverager(potential.parameters(), group, extras=2 * len(loss.names)),
            spectral=self.spectral,
            samples=loader,
            outputs=self._outputs(loss, optimizer, loader),
            group=group,
            first_step=self.start.step,
            numb_steps=numb_steps,
            accumulate=training.acc_freq,
            max_norm=training.gradient_max_norm,
        )

    def report_difference(self) -> None:
        """Log how far the spline expansion is from the exact nets at the end of training."""
        basis = self.spectral.current
        if basis is None or not self.writes:
            return
        plan = self.validation_plan or self.plan
        stream = plan.stream(_VALIDATION_SEED)
        batches = (plan.dataset.read(*stream.at(number)) for number in range(_COMPARED))
        cache = self.validation_cache if self.validation_plan else self.cache
        difference = measure_difference(self.start.potential, basis, batches, cache)
        log.info("spectral embedding: differs from the exact nets by at most %s", difference)

    def _numb_steps(self) -> int:
        training = self.config.training
        if training.numb_steps is not None:
            return training.numb_steps
        assert training.numb_epoch is not None
        return steps_for_epochs(training.numb_epoch, self.plan.per_epoch, self.clock.per_step)

    def _stream(self) -> Stream:
        saved = self.start.saved("stream")
        if saved is None:
            seed = self.config.training.seed
            drawn = self.group.all_gather_object(secrets.randbits(31) if seed is None else seed)[0]
            return self.plan.stream(int(drawn))
        stream = self.plan.stream(int(saved["seed"]))
        for difference in stream.load_state_dict(saved, strict=False):
            log.warning("The training data are not those of the checkpoint: %s", difference)
        return stream

    def _loader(self) -> DpLoaderSet[Any]:
        preparer = Preparer(self.start.potential, self.cache, self.spectral.basis)
        workers = worker_count(cores=self.placement.spare_cores)
        loader = DpLoaderSet(
            self.plan.dataset,
            self.stream,
            start=self.stream.position,
            rank=self.group.rank,
            size=self.group.size,
            prepare=self.tracer.traced(preparer) if workers else self._in_turn(preparer),
            workers=workers,
        )
        return self.stack.enter_context(loader)

    def _in_turn(self, prepare: Preparer) -> Callable[[MicroBatch], Sample]:
        """`prepare` as a phase of the step, for where no thread runs ahead."""

        def prepared(batch: MicroBatch) -> Sample:
            with self.group.phases(GEOMETRY):
                return prepare(batch)

        return prepared

    def _outputs(self, loss: EnergyLoss, optimizer: Optimizer, loader: DpLoaderSet[Any]) -> Outputs:
        training = self.config.training
        checkpoint = self.start.checkpoint
        scalars = self._scalars()
        _prepare_folder(self.start, self.options, self.group)
        curve, budget_file = self._curve(loss), self._budget_file()
        self.stack.callback(curve.close)
        self.stack.callback(budget_file.close)
        return Outputs(
            curve=curve,
            store=self._store(),
            scalars=scalars,
            budget=Budget(self.group, loader, budget_file, scalars, training.time_training),
            phases=self.group.phases,
            display=Display(training.disp_freq, training.time_training),
            validate=self._validator(loss),
            snapshot=self._snapshot(optimizer),
            save_freq=training.save_freq,
            average=training.disp_avg,
            interval=None if checkpoint is None else restore_interval(checkpoint, loss.names),
            bar=self._bar(),
        )

    def _bar(self) -> Bar | NullBar:
        bar = make_bar(self.writes)
        # Whatever ends the run, its messages must find the terminal as it was.
        self.stack.callback(bar.end)
        return bar

    def _curve(self, loss: EnergyLoss) -> LearningCurve | NullCurve:
        if not (self.writes and self.config.training.disp_training):
            return NullCurve()
        validation = self.validation_plan is not None
        return LearningCurve(self.config.training.disp_file, loss.columns, validation, self._restart_step())

    def _budget_file(self) -> BudgetFile | NullFile:
        training = self.config.training
        path = budget_path(training.disp_file)
        if not (self.writes and training.disp_training and path):
            return NullFile()
        return BudgetFile(path, self._restart_step())

    def _store(self) -> CheckpointStore | NullStore:
        training = self.config.training
        if not self.writes:
            return NullStore()
        return CheckpointStore(training.save_ckpt, training.max_ckpt_keep, training.save_dir)

    def _scalars(self) -> TensorBoard | NullScalars:
        training = self.config.training
        if not (self.writes and training.tensorboard):
            return NullScalars()
        scalars = TensorBoard(training.tensorboard_log_dir, training.tensorboard_freq, self._restart_step())
        self.stack.callback(scalars.close)
        return scalars

    def _restart_step(self) -> int | None:
        return None if self.start.checkpoint is None else self.start.step

    def _validator(self, loss: EnergyLoss) -> Validator | NoValidation:
        plan, data = self.validation_plan, self.config.training.validation_data
        if plan is None or data is None:
            return NoValidation()
        potential = self.start.potential
        prepare = Preparer(potential, self.validation_cache, lambda number: self.spectral.current)
        stream = plan.stream(_VALIDATION_SEED)
        return Validator(plan, stream, data.numb_btch, prepare, potential, loss, self.group)

    def _snapshot(self, optimizer: Optimizer) -> Any:
        potential, state = self.start.potential, self.stream.state_dict()

        def snapshot(step: int, interval: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            check_same_weights(potential.state_dict().values(), self.group)
            stream = {**state, "position": self.clock.position(step)}
            return (
                run_tensors(potential, optimizer, interval),
                run_info(self.config, stream, self.spectral.state_dict(), asdict(self.pace)),
            )

        return snapshot
