"""From an input file and a group of ranks to a finished run, in the order of events."""

from __future__ import annotations

import gc
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lockstep.checkpoint.background import BackgroundStore
from lockstep.checkpoint.format import Checkpoint
from lockstep.checkpoint.store import CheckpointStore, NullStore
from lockstep.config import AnyInput
from lockstep.data import DpLoaderSet, MicroBatch, Plan, depth_for, worker_count
from lockstep.device import device_of
from lockstep.observe.budget import Budget, BudgetFile, NullFile, budget_path
from lockstep.observe.lcurve import CURVE, LearningCurve, NullCurve
from lockstep.observe.live import make_bar
from lockstep.observe.timeline import NullTracer, Tracer
from lockstep.observe.wishes import find_wishes, observed
from lockstep.optim.kalman import KalmanFilter
from lockstep.optim.optimizer import State, make_optimizer, node_memory
from lockstep.parallel.agreement import check_same_setup, check_same_weights, share_weights
from lockstep.parallel.devices import Placement
from lockstep.parallel.gradients import GradientAverager
from lockstep.parallel.group import Group
from lockstep.parallel.mesh import Mesh
from lockstep.parallel.opening import timeout_of
from lockstep.parallel.scatter import NodeMemory
from lockstep.phases import GEOMETRY
from lockstep.tasks import Job, Task, choose_task
from lockstep.training.average import Average, build_average
from lockstep.training.changes import check_changes
from lockstep.training.course import Course, plot_course
from lockstep.training.data import Data, open_data
from lockstep.training.dividing import divide_ranks
from lockstep.training.folder import prepare_folder
from lockstep.training.full_validation import AtIntervals, build_full_validation, check_metric
from lockstep.training.kalman import KalmanTrainer
from lockstep.training.lock import RunLock
from lockstep.training.loop import Trainer
from lockstep.training.options import Options, checkpoint_prefix
from lockstep.training.outputs import Display, Outputs, Snapshot
from lockstep.training.pace import optimizer_for, scale_steps
from lockstep.training.scalars import NullScalars, TensorBoard
from lockstep.training.starting import find_restart
from lockstep.training.state import restore, restore_interval, run_info, run_tensors
from lockstep.training.threads import settle_threads
from lockstep.training.validation import NoValidation, Validator
from lockstep.training.verdict import Verdict

log = logging.getLogger(__name__)


def train(
    given: AnyInput,
    folder: Path,
    options: Options,
    group: Group,
    placement: Placement,
    kind: type[Task] | None = None,
) -> None:
    """Run the training that the input file describes, on this rank of `group`.

    `folder` is that of the file; `kind` says what trains, where that is not for the input to say.
    """
    kind = kind or choose_task(given)
    group.progress.timeout = timeout_of(os.environ, given.training.timeout)
    wishes = find_wishes(options.profile, options.timeline, given.training)
    with locked(given, group), observed(group, wishes, placement.device) as tracer, ExitStack() as stack:
        checkpoint = find_restart(given, options, group)
        check_changes(given, checkpoint)
        data = open_data(given, kind, folder)
        check_metric(data.validation, given.validating)
        agree_on_setup(given, data, checkpoint, group)
        mesh = divide_ranks(given, data.training, kind, options, group)
        config = scale_steps(given, mesh.data.size)
        course = plot_course(config, data.training, checkpoint, mesh.data)
        task = build_task(kind, config, data, course, checkpoint, options, mesh, placement)
        own = task.optimizer()
        memory = None if own else memory_in_common(task, config, group)
        optimizer = own or make_optimizer(
            task.module.named_parameters(),
            optimizer_for(config, mesh.data.size),
            group,
            config.training.zero_stage,
            memory,
        )
        if checkpoint is not None:
            restore(task, optimizer, checkpoint)
        share_weights(task.module.state_dict().values(), group)
        average = build_average(config, task.module, checkpoint)
        placement = settle_threads(task, data.training, course, checkpoint, mesh, placement)
        loader = stack.enter_context(build_loader(task, data.training, course, mesh.data, placement, tracer))
        scalars = build_scalars(task, checkpoint, group, stack)
        prepare_folder(task.config, checkpoint, options.output, group)
        device = device_of(placement.device)
        verdict = Verdict(group, device)
        outputs = build_outputs(
            task, optimizer, average, data, course, checkpoint, loader, scalars, verdict, mesh, placement, stack
        )
        kind_of_step: Any = KalmanTrainer if isinstance(optimizer, KalmanFilter) else Trainer
        trainer = kind_of_step(
            task=task,
            schedule=course.schedule,
            optimizer=optimizer,
            averager=GradientAverager(
                task.module.parameters(),
                group,
                extras=2 * len(task.columns) + kind_of_step.extras,
                narrow=config.training.exchange_precision == "float32",
                memory=memory,
            ),
            verdict=verdict,
            # Not a loop of our own, which would hold a sample while the next one is made.
            samples=map(lambda each: (each[0], device.taken(each[1])), loader),
            outputs=outputs,
            mesh=mesh,
            average=average,
            first_step=course.first_step,
            numb_steps=course.numb_steps,
            accumulate=config.training.acc_freq,
            max_norm=config.training.gradient_max_norm,
        )
        gc.freeze()  # What is there now stays: no need to look through it again and again.
        trainer.run()
        task.finish()


def memory_in_common(task: Task, config: AnyInput, group: Group) -> NodeMemory | None:
    """Memory in which ranks of one node share the optimizer's work; None where every rank needs all gradients, as they
    are to be clipped, or rounded on their way."""
    if config.training.gradient_max_norm or config.training.exchange_precision == "float32":
        return None
    return node_memory(task.module.named_parameters(), config.optimizer, group)


@contextmanager
def locked(config: AnyInput, group: Group) -> Iterator[None]:
    """Keep other runs away from this run's files; the rank that writes holds the lock for all."""
    outputs = [checkpoint_prefix(config), Path(config.training.disp_file)]
    with RunLock(outputs if group.rank == 0 else []):
        group.barrier()
        yield


def agree_on_setup(config: AnyInput, data: Data, checkpoint: Checkpoint | None, group: Group) -> None:
    """Every rank has read its own copy of everything; they must be the same."""
    setup = {
        "input file": config.dump(),
        "training data": data.training.stream(0).state_dict(),
        "checkpoint": None if checkpoint is None else (checkpoint.step, checkpoint.info.get("stream")),
    }
    # Some may have read for longer than others.
    with group.progress.allow(math.inf):
        check_same_setup(setup, group)


def build_task(
    kind: type[Task],
    config: AnyInput,
    data: Data,
    course: Course,
    checkpoint: Checkpoint | None,
    options: Options,
    mesh: Mesh,
    placement: Placement,
) -> Task:
    """What will be trained, built by all ranks together."""
    job = Job(
        config=config,
        training=data.training,
        validation=data.validation,
        group=mesh.world,
        frame=mesh.frame,
        device=placement.device,
        checkpoint=checkpoint,
        weights=options.finetune or options.init_model or options.init_frz_model,
        survey_all=not options.skip_neighbor_stat,
        start_lr=course.schedule.start_lr,
        position=course.position,
        finetune=options.finetune is not None,
        head=options.head,
    )
    return kind.build(job)


def build_loader(
    task: Task, plan: Plan, course: Course, group: Group, placement: Placement, tracer: Tracer | NullTracer
) -> DpLoaderSet[Any]:
    """This rank's share of the stream, prepared ahead where a core is spare, in turn where none is."""
    workers = worker_count(cores=placement.spare_cores)
    return DpLoaderSet(
        plan.dataset,
        course.stream,
        start=course.stream.position,
        rank=group.rank,
        size=group.size,
        prepare=device_of(placement.device).ahead(tracer.traced(task.prepare)) if workers else _in_turn(task, group),
        workers=workers,
        depth=depth_for(workers, plan.most_atoms),
    )


def _in_turn(task: Task, group: Group) -> Callable[[MicroBatch], Any]:
    """Preparation as a phase of the step, for where no thread runs ahead."""

    def prepared(batch: MicroBatch) -> Any:
        with group.phases(GEOMETRY):
            return task.prepare(batch)

    return prepared


def build_outputs(
    task: Task,
    optimizer: State,
    average: Average,
    data: Data,
    course: Course,
    checkpoint: Checkpoint | None,
    loader: DpLoaderSet[Any],
    scalars: TensorBoard | NullScalars,
    verdict: Verdict,
    mesh: Mesh,
    placement: Placement,
    stack: ExitStack,
) -> Outputs:
    """All that a step leaves behind; files are real on rank 0 alone, and closed by `stack`."""
    training, group = task.config.training, mesh.world
    restart_step = None if checkpoint is None else checkpoint.step
    curve = build_curve(task, data, checkpoint, group)
    budget_file = build_budget_file(task, restart_step, group)
    bar, store = make_bar(group.rank == 0), build_store(task, group)
    # Whatever ends the run, its messages must find the terminal as it was, and the checkpoint being written whole.
    for close in (curve.close, budget_file.close, bar.end, store.close):
        stack.callback(close)
    state = snapshot_of(task, optimizer, average, course, placement, group)
    full = build_full_validation(task, data.validation, course.numb_steps, checkpoint, mesh, state)
    stack.callback(full.close)
    threads = placement.intra_threads if placement.device == "cpu" else 0
    return Outputs(
        curve=curve,
        store=store,
        scalars=scalars,
        budget=Budget(group, loader, budget_file, scalars, training.time_training, mesh.frame.size, threads),
        phases=group.phases,
        display=Display(training.disp_freq, training.time_training),
        validate=build_validator(task, data, mesh.data),
        validate_all=full,
        snapshot=with_state(state, full, curve),
        save_freq=training.save_freq,
        average=training.disp_avg,
        interval=None if checkpoint is None else restore_interval(checkpoint, task.columns, placement.device),
        settle=verdict.settle,
        bar=bar,
    )


def build_curve(task: Task, data: Data, checkpoint: Checkpoint | None, group: Group) -> LearningCurve | NullCurve:
    training = task.config.training
    if not (group.rank == 0 and training.disp_training):
        return NullCurve()
    names = {column.name: (column.heading("val"), column.heading("trn")) for column in task.columns}
    validation = data.validation is not None
    if checkpoint is None:
        return LearningCurve(training.disp_file, names, validation)
    last = checkpoint.info.get(CURVE)
    return LearningCurve(training.disp_file, names, validation, checkpoint.step, last if isinstance(last, str) else "")


def build_budget_file(task: Task, restart_step: int | None, group: Group) -> BudgetFile | NullFile:
    training = task.config.training
    path = budget_path(training.disp_file)
    if not (group.rank == 0 and training.disp_training and path):
        return NullFile()
    return BudgetFile(path, restart_step)


def build_store(task: Task, group: Group) -> BackgroundStore | NullStore:
    training = task.config.training
    if group.rank != 0:
        return NullStore()
    return BackgroundStore(CheckpointStore(training.save_ckpt, training.max_ckpt_keep, training.save_dir))


def build_scalars(
    task: Task, checkpoint: Checkpoint | None, group: Group, stack: ExitStack
) -> TensorBoard | NullScalars:
    training = task.config.training
    if not (group.rank == 0 and training.tensorboard):
        return NullScalars()
    purge_step = None if checkpoint is None else checkpoint.step
    scalars = TensorBoard(training.tensorboard_log_dir, training.tensorboard_freq, purge_step)
    stack.callback(scalars.close)
    return scalars


def build_validator(task: Task, data: Data, group: Group) -> Validator | NoValidation:
    if data.validation is None:
        return NoValidation()
    return Validator.of(task, data.validation, task.config.training.validation_batches, group)


def with_state(snapshot: Snapshot, *parts: AtIntervals | LearningCurve | NullCurve) -> Snapshot:
    """What a checkpoint holds, and what it keeps of other parts of the run."""

    def both(step: int, interval: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors, info = snapshot(step, interval)
        for part in parts:
            info = info | part.state()
        return tensors, info

    return both


def snapshot_of(
    task: Task, optimizer: State, average: Average, course: Course, placement: Placement, group: Group
) -> Snapshot:
    """What a checkpoint holds, for all ranks to call: they compare their weights on the way."""

    def snapshot(step: int, interval: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if group.size > 1:
            check_same_weights(task.module.state_dict().values(), group)
        return run_tensors(task, optimizer, average, interval), run_info(
            task, *course.state(step), placement.intra_threads
        )

    return snapshot
