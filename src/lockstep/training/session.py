"""From an input file and a group of ranks to a finished run: opens data, settles the model, wires up the loop."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config import Input, ModelConfig, load_input
from lockstep.config.training import DataConfig
from lockstep.data import DataSet, DpLoaderSet, Plan, Stream, make_plan, steps_for_epochs, summary_lines
from lockstep.errors import CheckpointError
from lockstep.files import write_text
from lockstep.geometry import PairCache
from lockstep.geometry.cache import default_budget
from lockstep.model import Potential
from lockstep.model.loading import load_potential
from lockstep.observe.live import make_bar
from lockstep.parallel.agreement import check_same_weights, share_weights
from lockstep.parallel.gradients import GradientAverager
from lockstep.parallel.group import Group
from lockstep.training import scaling
from lockstep.training.aside import old_files, set_aside
from lockstep.training.checkpoint import POINTER, SUFFIX, Checkpoint, CheckpointStore, NullStore, load_checkpoint
from lockstep.training.lcurve import LearningCurve, NullCurve
from lockstep.training.lock import RunLock
from lockstep.training.loop import Trainer
from lockstep.training.loss import EnergyLoss
from lockstep.training.optimizer import make_optimizer
from lockstep.training.outputs import Display, Outputs
from lockstep.training.prepare import Preparer
from lockstep.training.scalars import NullScalars, TensorBoard
from lockstep.training.schedule import make_schedule
from lockstep.training.state import (
    load_weights,
    model_config_of,
    potential_of,
    refuse_other_model,
    restore_interval,
    restore_optimizer,
    run_info,
    run_tensors,
)
from lockstep.training.statfile import survey_with_file
from lockstep.training.survey import apply_statistics, settle_sel, warn_about_sel
from lockstep.training.validation import NoValidation, Validator

log = logging.getLogger(__name__)

_VALIDATION_SEED = 1


@dataclass(frozen=True)
class Options:
    """What the command line says beyond the input file.

    Attributes:
        restart: a checkpoint to go on from, step and all.
        init_model: a checkpoint whose weights a new run begins with.
        init_frz_model: a `.dp` model whose weights a new run begins with.
        skip_neighbor_stat: do not count neighbours in all frames.
        output: where the input with all defaults is written.
    """

    restart: str | None = None
    init_model: str | None = None
    init_frz_model: str | None = None
    skip_neighbor_stat: bool = False
    output: str = "out.json"


def train(input_file: str, options: Options, group: Group, device: str = "cpu") -> None:
    """Run the training that `input_file` describes, on this rank of `group`."""
    given = load_input(input_file)
    config = scaling.scale_steps(given, group.size)
    with _locked(config, group):
        checkpoint = _find_restart(config, options, group)
        session = _Session(config, Path(input_file).parent, options, group, device, checkpoint)
        session.run()


@contextmanager
def _locked(config: Input, group: Group) -> Iterator[None]:
    """Keep other runs away from this run's files; the rank that writes holds the lock for all."""
    outputs = [_checkpoint_prefix(config), Path(config.training.disp_file)]
    with RunLock(outputs if group.rank == 0 else []):
        group.barrier()
        yield


def _find_restart(config: Input, options: Options, group: Group) -> Checkpoint | None:
    """The checkpoint to go on from: as asked for, or this run's own last one after a launcher's restart."""
    if options.restart:
        return load_checkpoint(options.restart)
    if not group.context.attempt:
        return None
    try:
        return load_checkpoint(_checkpoint_prefix(config))
    except CheckpointError:
        log.warning("The launcher has started this run again, and there is no checkpoint yet: it begins anew")
        return None


def _checkpoint_prefix(config: Input) -> Path:
    prefix = Path(config.training.save_ckpt)
    return prefix if config.training.save_dir is None else Path(config.training.save_dir) / prefix.name


class _Session:
    """The parts of one run, each made by one method, and the run itself."""

    def __init__(
        self,
        config: Input,
        folder: Path,
        options: Options,
        group: Group,
        device: str,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.config, self.folder, self.options, self.group, self.device = config, folder, options, group, device
        self.checkpoint = checkpoint
        self.cache = PairCache(default_budget(group.context.local_size))
        self.seed = self._stream_seed()
        self.plan = self._open(config.training.training_data, "training")
        validation = config.training.validation_data
        self.validation_plan = self._open(validation, "validation") if validation else None
        self.potential = self._potential().to(device)
        share_weights(self.potential.state_dict().values(), group)

    def run(self) -> None:
        """Train to the end."""
        self._prepare_folder()
        with ExitStack() as stack:
            self._trainer(stack).run()

    def _stream_seed(self) -> int:
        if self.checkpoint is not None:
            return int(self.checkpoint.info["stream"]["seed"])
        seed = self.config.training.seed
        return int(self.group.all_gather_object(secrets.randbits(31) if seed is None else seed)[0])

    def _open(self, data: DataConfig, kind: str) -> Plan:
        fitting = self.config.model.fitting_net
        where = f"training.{kind}_data"
        dataset = DataSet(
            data.systems,
            self.config.model.type_map,
            numb_fparam=fitting.numb_fparam,
            numb_aparam=fitting.numb_aparam,
            rglob_patterns=data.rglob_patterns,
            input_folder=self.folder,
        )
        plan = make_plan(dataset, data.batch_size, data.sys_probs, auto_prob=data.auto_prob, where=where)
        for line in summary_lines(kind, plan):
            log.info(line)
        return plan

    def _potential(self) -> Potential:
        """The potential as training finds it: from a checkpoint, from another model, or new with data statistics."""
        given = self.config.model
        if self.checkpoint is not None:
            refuse_other_model(model_config_of(self.checkpoint), given, str(self.checkpoint.path))
            return self._adopt(potential_of(self.checkpoint))
        source = self.options.init_model or self.options.init_frz_model
        if source:
            log.info("Initial weights are taken from %s", source)
            found = load_potential(source)
            refuse_other_model(found.config, given, source)
            return self._adopt(found)
        return self._new_potential()

    def _adopt(self, found: Potential) -> Potential:
        """A potential with the weights of `found` that is trained as the input file says (seed, trainable)."""
        descriptor = self.config.model.descriptor.model_copy(update={"sel": found.cutoff.sel})
        self._settle(self.config.model.model_copy(update={"descriptor": descriptor}))
        potential = Potential(self.config.model)
        load_weights(potential, found.state_dict(), "the initial model")
        return potential

    def _new_potential(self) -> Potential:
        with self.group.progress.allow(math.inf):
            survey = survey_with_file(
                self.config, self.plan, self.cache, self.group, all_frames=not self.options.skip_neighbor_stat
            )
        self._settle(settle_sel(self.config.model, survey.max_count))
        if (survey.max_count >= 0).all():
            log.info("training data with min nbor dist: %s", survey.min_distance)
            log.info("training data with max nbor size: %s", survey.max_count.tolist())
            if warn_about_sel(self.config.model, survey):
                self.cache.clear()
        potential = Potential(self.config.model)
        apply_statistics(potential, survey)
        return potential

    def _settle(self, model: ModelConfig) -> None:
        self.config = self.config.model_copy(update={"model": model})

    def _prepare_folder(self) -> None:
        """Write out.json, and move the files of an earlier run out of the way of a new one."""
        if self.group.rank == 0:
            prefix = _checkpoint_prefix(self.config)
            if self.checkpoint is None:
                names = (self.config.training.disp_file, self.options.output, POINTER)
                set_aside(old_files(prefix, SUFFIX, map(Path, names)))
            write_text(self.options.output, json.dumps(self.config.dump(), indent=2) + "\n")
        self.group.barrier()

    def _trainer(self, stack: ExitStack) -> Trainer:
        config, group = self.config, self.group
        training = config.training
        numb_steps = self._numb_steps()
        factor = scaling.worker_factor(config.learning_rate.scale_by_worker, group.size)
        schedule = make_schedule(config.learning_rate, numb_steps, factor)
        loss = EnergyLoss(config.loss, schedule.start_lr)
        optimizer = make_optimizer(self.potential.named_parameters(), config.optimizer)
        first_step = 0
        interval = None
        if self.checkpoint is not None:
            first_step = self.checkpoint.step
            restore_optimizer(optimizer, self.checkpoint)
            interval = restore_interval(self.checkpoint, loss.names)
        stream = self._stream(first_step)
        prepare = Preparer(self.potential, self.cache)
        loader = stack.enter_context(
            DpLoaderSet(
                self.plan.dataset, stream, start=stream.position, rank=group.rank, size=group.size, prepare=prepare
            )
        )
        for line in scaling.report(config, factor, group.size, numb_steps, self.plan):
            log.info(line)
        per_step = training.acc_freq * group.size
        outputs = self._outputs(stack, loss, optimizer, stream, per_step, first_step, interval)
        return Trainer(
            potential=self.potential,
            loss=loss,
            schedule=schedule,
            optimizer=optimizer,
            averager=GradientAverager(self.potential.parameters(), group, extras=2 * len(loss.names)),
            samples=loader,
            outputs=outputs,
            group=group,
            first_step=first_step,
            numb_steps=numb_steps,
            accumulate=training.acc_freq,
            max_norm=training.gradient_max_norm,
        )

    def _numb_steps(self) -> int:
        training = self.config.training
        if training.numb_steps is not None:
            return training.numb_steps
        assert training.numb_epoch is not None
        return steps_for_epochs(training.numb_epoch, self.plan.per_epoch, self.group.size * training.acc_freq)

    def _stream(self, first_step: int) -> Stream:
        stream = self.plan.stream(self.seed)
        if self.checkpoint is not None:
            for difference in stream.load_state_dict(dict(self.checkpoint.info["stream"]), strict=False):
                log.warning("The training data are not those of the checkpoint: %s", difference)
        return stream

    def _outputs(
        self,
        stack: ExitStack,
        loss: EnergyLoss,
        optimizer: Any,
        stream: Stream,
        per_step: int,
        first_step: int,
        interval: Any,
    ) -> Outputs:
        training, writes = self.config.training, self.group.rank == 0
        restart_step = first_step if self.checkpoint is not None else None
        curve: LearningCurve | NullCurve = NullCurve()
        if writes and training.disp_training:
            curve = LearningCurve(
                training.disp_file, loss.columns, self.validation_plan is not None, restart_step
            )
        scalars: TensorBoard | NullScalars = NullScalars()
        if writes and training.tensorboard:
            scalars = TensorBoard(training.tensorboard_log_dir, training.tensorboard_freq, restart_step)
        stack.enter_context(curve)
        stack.callback(scalars.close)
        store: CheckpointStore | NullStore = NullStore()
        if writes:
            store = CheckpointStore(training.save_ckpt, training.max_ckpt_keep, training.save_dir)
        start = replace_position(stream.state_dict(), stream.position)

        def snapshot(step: int) -> tuple[dict[str, Any], dict[str, Any]]:
            check_same_weights(self.potential.state_dict().values(), self.group)
            position = start["position"] + (step - first_step) * per_step
            return (
                run_tensors(self.potential, optimizer, outputs.interval),
                run_info(self.config, replace_position(start, position)),
            )

        outputs = Outputs(
            curve=curve,
            store=store,
            scalars=scalars,
            display=Display(training.disp_freq, training.time_training),
            validate=self._validator(loss),
            snapshot=snapshot,
            save_freq=training.save_freq,
            average=training.disp_avg,
            interval=interval,
            bar=make_bar(writes),
        )
        return outputs

    def _validator(self, loss: EnergyLoss) -> Validator | NoValidation:
        plan, data = self.validation_plan, self.config.training.validation_data
        if plan is None or data is None:
            return NoValidation()
        cache = PairCache(default_budget(self.group.context.local_size) // 4)
        prepare = Preparer(self.potential, cache)
        stream = plan.stream(_VALIDATION_SEED)
        return Validator(plan, stream, data.numb_btch, prepare, self.potential, loss, self.group)


def replace_position(state: dict[str, Any], position: int) -> dict[str, Any]:
    return {**state, "position": position}
