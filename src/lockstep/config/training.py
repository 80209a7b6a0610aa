"""The `training` section: data, length, files, display."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from lockstep.config import unsupported
from lockstep.config.section import (
    Aliases,
    Count,
    FileName,
    Finding,
    Flag,
    FractionBelowOne,
    NonNegative,
    Number,
    Passes,
    Repeats,
    Seconds,
    Section,
    Seed,
    Text,
    is_count,
    refuse_strange_letters,
    wrong,
)

_BATCH_SIZE = "expected a positive integer, a list of them, 'auto', 'auto:N', 'max:N', 'filter:N' or 'mixed:N'"
_AUTO_PROB = "expected 'prob_uniform', 'prob_sys_size', or 'prob_sys_size;FIRST:END:WEIGHT;...'"


def _systems(value: Any) -> Any:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) and path for path in paths):
        raise wrong("expected a path in quotes, or a list of paths")
    refuse_strange_letters("".join(paths))
    if not paths:
        raise wrong("the list is empty", "name at least one data system")
    return value


def _batch_size(value: Any) -> Any:
    if isinstance(value, str):
        if re.fullmatch(r"auto|(auto|max|filter|mixed|mix):0*[1-9]\d{0,14}", value):
            return value
        raise wrong(_BATCH_SIZE)
    sizes = value if isinstance(value, list | tuple) else [value]
    if not sizes or not all(map(is_count, sizes)):
        raise wrong(_BATCH_SIZE)
    return tuple(map(int, sizes)) if isinstance(value, list | tuple) else int(value)


def _auto_prob(value: Any) -> Any:
    if not isinstance(value, str):
        raise wrong(_AUTO_PROB)
    name, *blocks = value.split(";")
    if name not in ("prob_uniform", "prob_sys_size") or (blocks and name == "prob_uniform"):
        raise wrong(_AUTO_PROB)
    weights = [_block_weight(block) for block in blocks]
    if blocks and not sum(weights) > 0:
        raise wrong("at least one block needs a weight above zero")
    return value


def _block_weight(block: str) -> float:
    match = re.fullmatch(r"\s*(\d+):(\d+):(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*", block)
    if not match:
        raise wrong(f"block {block!r} is not FIRST:END:WEIGHT, such as 0:2:0.5")
    if int(match[1]) >= int(match[2]):
        raise wrong(f"block {block!r} is empty", "END is the number after the last system of the block")
    weight = float(match[3])
    if not math.isfinite(weight):
        raise wrong(
            f"the weight of block {block!r} is not a finite number",
            "give the weights that blocks have beside each other",
        )
    return weight


def _sys_probs(value: Any) -> Any:
    if isinstance(value, list | tuple) and not value:
        raise wrong("the list is empty", "give one probability per system, or leave the key out")
    return value


def _cache_memory(value: Any) -> Any:
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise wrong("expected 'auto' or a number of megabytes (0 keeps nothing)")
    return float(value)


def _ranks_per_frame(value: Any) -> Any:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise wrong("expected 'auto' or a number of ranks (1 or more)")
    return value


def _zero_stage(value: Any) -> Any:
    if value in (2, 3) and not isinstance(value, bool):
        raise wrong(
            "stages 2 and 3 would shard gradients and weights too, which are whole on every rank here, so that"
            " they are summed in one message; torch's FSDP2 loses the weights between the two backward passes that a"
            " loss on forces needs",
            "use 1: it shards the optimizer, which is the largest part",
        )
    if isinstance(value, bool) or value not in (0, 1):
        raise wrong("expected 0 or 1")
    return int(value)


def _compute_prec(value: Any) -> Any:
    if value == "float64":
        raise wrong("all products of a float64 model are float64 without this section", "leave mixed_precision out")
    return value


class DataConfig(Section):
    """A set of data systems and how batches are drawn from it."""

    without_effect: ClassVar[frozenset[str]] = frozenset({"set_prefix"})

    systems: Annotated[str | tuple[str, ...], BeforeValidator(_systems)]
    """Directories of data systems; one that is not a system itself is searched for systems."""
    rglob_patterns: tuple[Text, ...] | None = None
    """Patterns that the systems found in a directory must match."""
    batch_size: Annotated[int | str | tuple[int, ...], BeforeValidator(_batch_size)] = "auto"
    """Frames per batch and worker: a number, one per system, `auto` or `auto:N` (at least 32 or N atoms),
    `max:N` (at most N atoms), `filter:N` (the same, leaving out systems of more than N atoms), or `mixed:N` (N frames
    of any systems, each padded to the size of the largest)."""
    auto_prob: Annotated[Annotated[str, BeforeValidator(_auto_prob)], Aliases("auto_prob_style")] = "prob_sys_size"
    """How likely each system is: all alike (`prob_uniform`), by its number of batches (`prob_sys_size`), or
    by blocks of systems, `prob_sys_size;FIRST:END:WEIGHT;...`."""
    sys_probs: Annotated[tuple[Number, ...] | None, BeforeValidator(_sys_probs), Aliases("sys_weights")] = None
    """Probability of each system, instead of `auto_prob`; systems with a negative one share what remains."""

    def findings(self) -> Iterator[Finding]:
        """Yield probabilities that cannot add up to one."""
        if self.sys_probs is None:
            return
        total = sum(p for p in self.sys_probs if p >= 0)
        rest = any(p < 0 for p in self.sys_probs)
        if total > 1 + 1e-8 or (total < 1 - 1e-8 and not rest):
            remedy = "make them add up to 1; a negative entry takes its share of what is left"
            yield Finding("sys_probs", f"the probabilities add up to {total:g}, not to 1", remedy)


class TrainingDataConfig(DataConfig):
    """The data to train on."""

    min_pair_dist: NonNegative = 0.0
    """Leave out frames in which two atoms are closer than this, in Angstrom; 0 leaves none out."""


class ValidationDataConfig(DataConfig):
    """The data to validate on."""

    numb_btch: Annotated[Count, Aliases("numb_batch")] = 1
    """Number of batches averaged for each line of the learning curve."""


class MixedPrecisionConfig(Section):
    """Which numbers a training in mixed precision computes with."""

    compute_prec: Annotated[Literal["float32", "float16", "bfloat16"], BeforeValidator(_compute_prec)] = "float32"
    """Precision of the fitting nets' matrix products. It is never less than float32 here: CPUs are slower below it."""
    output_prec: Literal["float64"] = "float64"
    """Precision of weights, optimizer, descriptor, energies and forces."""


class TrainingConfig(Section):
    """The run: data, length, files, display."""

    unsupported_keys: ClassVar[dict[str, object]] = unsupported.TRAINING
    moved: ClassVar[dict[str, str]] = unsupported.TRAINING_MOVED
    without_effect: ClassVar[frozenset[str]] = frozenset({"numb_test", "set_prefix"})

    training_data: TrainingDataConfig
    """The data to train on."""
    validation_data: ValidationDataConfig | None = None
    """The data to validate on; null for none."""
    numb_steps: Annotated[Count | None, Aliases("stop_batch", "num_step", "num_steps", "numb_step")] = None
    """Number of training steps; either this or `numb_epoch`."""
    numb_epoch: Annotated[Passes | None, Aliases("num_epochs", "num_epoch", "numb_epochs")] = None
    """Number of passes over the training data, possibly fractional; either this or `numb_steps`."""
    seed: Seed = None
    """Seed of the order in which training data are drawn; null draws a new one."""
    stat_file: FileName | None = None
    """Where statistics of the data are kept for the next run: an HDF5 file (.h5, .hdf5) or a directory."""
    stat_file_mode: Literal["update", "read"] = "update"
    """`update` adds missing statistics to `stat_file`; `read` needs them complete and never writes."""
    disp_file: FileName = "lcurve.out"
    """The file of the learning curve."""
    disp_freq: Count = 1000
    """Write a line of the learning curve every this many steps."""
    disp_training: Flag = True
    """Whether to write the learning curve."""
    disp_avg: Flag = False
    """Show training errors averaged over all steps since the last line, instead of those of one batch."""
    time_training: Flag = True
    """Whether to log how long the steps take."""
    save_freq: Count = 1000
    """Save a checkpoint every this many steps."""
    save_ckpt: FileName = "model.ckpt"
    """Path and beginning of the name of checkpoint files."""
    save_dir: FileName | None = None
    """Directory for the checkpoint files, made if it does not exist; null for that of `save_ckpt`."""
    max_ckpt_keep: Count = 5
    """How many of the latest checkpoints are kept."""
    tensorboard: Flag = False
    """Whether to write events for TensorBoard."""
    tensorboard_log_dir: FileName = "log"
    """Directory of the TensorBoard events."""
    tensorboard_freq: Count = 1
    """Write TensorBoard events every this many steps."""
    profiling: Flag = False
    """Whether to write a timeline of what every rank does, for chrome://tracing or Perfetto."""
    profiling_file: FileName = "timeline.json"
    """The file of the timeline."""
    gradient_max_norm: NonNegative = 0.0
    """Scale the gradient down to this norm when it is longer; 0 leaves it alone."""
    ranks_per_frame: Annotated[Literal["auto"] | int, BeforeValidator(_ranks_per_frame)] = 1
    """How many ranks share the atoms of each frame, by blocks of space. It must divide the number of ranks; the others
    train on frames of their own, as ever. For frames that are too large, or too slow, for one rank. `auto` lets as many
    share as have at least 512 atoms each."""
    acc_freq: Repeats = 1
    """Micro-batches that each worker takes in a step, one after the other, their gradients averaged: the same training
    as on so many times the workers. All numbers of steps here count updates of the weights, so that a run sees as many
    times the frames; in DeePMD-kit, where a step is a micro-batch, it does not."""
    mixed_precision: MixedPrecisionConfig | None = None
    """Compute the fitting nets' matrix products of a float64 model in float32; null for float64 throughout."""
    zero_stage: Annotated[Literal[0, 1], BeforeValidator(_zero_stage)] = 0
    """1 shares the optimizer's work and memory out among the ranks, as SOAP always does; 0 leaves all of it to each."""
    exchange_precision: Literal["default", "float32", "float64"] = "default"
    """`float32` rounds gradients on their way between ranks, which halves the messages of a float64 model: the sums
    then have seven digits. `default` and `float64` send them as they are."""
    enable_ema: Flag = False
    """Keep a running average of the weights too, which `dp freeze --ema` makes a model of."""
    ema_decay: FractionBelowOne = 0.999
    """What an update leaves of the running average; after `n` updates not more than n/(n + 10), so that short runs
    forget the weights they began with."""
    ema_ckpt_keep: Count | None = None
    """Accepted and without effect: the average lies in the checkpoints, `max_ckpt_keep` of them."""
    scale_steps_by_worker: Flag = False
    """Divide numb_steps, decay_steps, warm-up, save and display intervals by the number of workers."""
    cache_memory: Annotated[Literal["auto"] | float, BeforeValidator(_cache_memory)] = "auto"
    """Memory in MB in which each rank keeps neighbour lists from one pass over the data to the next; `auto` is a
    quarter of what is free within the limits of the job, shared among the ranks of a node. The environment variable
    DP_CACHE_MEMORY wins."""
    timeout: Seconds = 60.0
    """Seconds a rank waits in a step for the others before the job is ended; LOCKSTEP_TIMEOUT has precedence."""

    @property
    def validation_batches(self) -> int:
        """Number of batches averaged for each line of the learning curve."""
        return self.validation_data.numb_btch if self.validation_data else 1

    def findings(self) -> Iterator[Finding]:
        """Yield a run of no or of two lengths, and statistics to be read from nowhere."""
        if (self.numb_steps is None) == (self.numb_epoch is None):
            both = self.numb_steps is not None
            reason = "excludes numb_epoch" if both else "the length of training is missing"
            remedy = "keep one of them" if both else "give numb_steps (or numb_epoch)"
            yield Finding("numb_steps", reason, remedy)
        if self.stat_file_mode == "read" and self.stat_file is None:
            yield Finding("stat_file_mode", "needs stat_file, the statistics to be read")
