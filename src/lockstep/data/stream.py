"""The one endless sequence of micro-batches: which frames are number m, whoever asks.

It is a pure function of the seed and of the data, never of the ranks, so that any number of ranks can share
it out, and a restart on another number of them goes on exactly where it stopped.

Randomness is counter-based (Philox): each draw has a fixed place in the random sequence, and only the raw
bits of the generator are used, because NumPy keeps those the same between versions, unlike `permutation`.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from lockstep.errors import CheckpointError

_BLOCK = 4096
_REPLAY = 1 << 20
_PASSES_KEPT = 64
_SYSTEMS, _FRAMES = 0, 1  # separate keys, so that the two kinds of draws never meet
_VERSION = 1


class Draw(NamedTuple):
    """Micro-batch m is turn number `turn` (from 0) of system `system`."""

    system: int
    turn: int


class Selection(NamedTuple):
    """The frames (numbers within the system) of a micro-batch."""

    system: int
    frames: np.ndarray


class Stream:
    """Micro-batches 0, 1, 2, ...

    The system of each is drawn by probability. A system's frames come in shuffled passes: turn c of a system
    takes the next `batch_size` frames of its passes laid end to end, so every frame occurs once a pass and
    none is left over. Where a micro-batch reaches over the end of a pass, frames at the start of the next
    pass that it already holds change places with later ones of that pass; so it never holds a frame twice.

    Args:
        n_frames, batch_sizes, probabilities: one entry a system; a batch size never exceeds the frames.
        seed: any integer.
    """

    def __init__(self, n_frames: np.ndarray, batch_sizes: np.ndarray, probabilities: np.ndarray, seed: int) -> None:
        self.n_frames = np.asarray(n_frames, dtype=np.int64)
        self.batch_sizes = np.asarray(batch_sizes, dtype=np.int64)
        self.probabilities = np.asarray(probabilities, dtype=np.float64)
        assert len(self.n_frames) == len(self.batch_sizes) == len(self.probabilities) > 0
        assert ((self.batch_sizes >= 1) & (self.batch_sizes <= self.n_frames)).all()
        self.seed = int(seed)
        self.position = 0
        cumulative = np.cumsum(self.probabilities)
        self._cumulative = cumulative / cumulative[-1]
        self._passes: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self._rewind()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Selection:
        selection = self.at(self.position)
        self.position += 1
        return selection

    def __getitem__(self, number: int) -> Selection:
        return self.at(number)

    def seek(self, number: int) -> None:
        """Make `number` the next micro-batch."""
        self.draw(number)
        self.position = number

    def at(self, number: int) -> Selection:
        """Micro-batch `number`. Going forward is cheap; going back by more than a block replays all draws."""
        system, turn = self.draw(number)
        return Selection(system, self.frames(system, turn))

    def draw(self, number: int) -> Draw:
        """System and turn of micro-batch `number`."""
        assert number >= 0
        block = number // _BLOCK
        if block != self._block:
            self._enter(block)
        place = number % _BLOCK
        return Draw(int(self._systems[place]), int(self._turns[place]))

    def frames(self, system: int, turn: int) -> np.ndarray:
        """Frames of a turn of a system; safe to call from several threads."""
        n, b = int(self.n_frames[system]), int(self.batch_sizes[system])
        first, start = divmod(turn * b, n)
        head = self._pass(system, first)[start : start + b]
        if len(head) == b:
            return head.copy()
        return np.concatenate([head, self._pass(system, first + 1)[: b - len(head)]])

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, and over which data."""
        return {
            "version": _VERSION,
            "position": self.position,
            "seed": self.seed,
            "fingerprint": self.fingerprint(),
            "n_systems": len(self.n_frames),
            "n_frames": int(self.n_frames.sum()),
        }

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> list[str]:
        """Go on where a stream stopped.

        Returns the differences between then and now, in words; under `strict` they are an error. Without it
        the stream goes on at the same position over the new data: no longer the sequence interrupted.
        """
        if state.get("version") != _VERSION:
            raise CheckpointError(
                f"the stream was saved in format {state.get('version')}, this program reads {_VERSION}",
                remedy="restart with the version of the program that wrote the checkpoint",
            )
        differences = self._differences(state)
        if strict and differences:
            raise CheckpointError(
                "the training data are not those of the checkpoint: " + "; ".join(differences),
                remedy="restore the data, the batch size and the seed, or start from the model alone",
            )
        self.seek(int(state["position"]))
        return differences

    def fingerprint(self) -> str:
        """Equal if and only if frames, batch sizes and probabilities (to rounding) of all systems are."""
        digest = hashlib.sha256()
        digest.update(self.n_frames.astype("<i8").tobytes())
        digest.update(self.batch_sizes.astype("<i8").tobytes())
        digest.update(np.round(self.probabilities * 1e12).astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    def _differences(self, state: dict[str, Any]) -> list[str]:
        found = []
        counts = (
            ("n_systems", len(self.n_frames), "systems"),
            ("n_frames", int(self.n_frames.sum()), "frames"),
        )
        for key, now, noun in counts:
            if state[key] != now:
                found.append(f"there were {state[key]} {noun} and now there are {now}")
        if not found and state["fingerprint"] != self.fingerprint():
            found.append("frames per system, batch sizes or probabilities have changed")
        if state["seed"] != self.seed:
            found.append(f"the seed was {state['seed']} and now is {self.seed}")
        return found

    def _rewind(self) -> None:
        self._block = -1
        self._systems = np.empty(0, dtype=np.int64)
        self._turns = np.empty(0, dtype=np.int64)
        self._taken = np.zeros(len(self.n_frames), dtype=np.int64)
        self._counted = 0  # draws before this block are in _taken

    def _enter(self, block: int) -> None:
        """Make `block` the current one: its systems, and the turns that each has had by then."""
        if block < self._block:
            self._rewind()
        start = block * _BLOCK
        while self._counted < start:
            count = min(_REPLAY, start - self._counted)
            self._taken += np.bincount(self._draws(self._counted, count), minlength=len(self._taken))
            self._counted += count
        self._systems = self._draws(start, _BLOCK)
        self._turns = self._taken[self._systems] + _occurrence(self._systems)
        self._block = block

    def _draws(self, start: int, count: int) -> np.ndarray:
        """Systems of micro-batches start .. start + count - 1; four random numbers come from each count."""
        assert start % 4 == 0
        bits = _philox(self.seed, _SYSTEMS, (start // 4, 0, 0, 0)).random_raw(count)
        return np.searchsorted(self._cumulative, (bits >> 11) * 2.0**-53, side="right")

    def _pass(self, system: int, number: int) -> np.ndarray:
        """Pass `number` of a system: all its frames, in the order in which they are taken."""
        with self._lock:
            order = self._passes.get((system, number))
        if order is None:
            order = self._compute_pass(system, number)
            with self._lock:
                self._passes[system, number] = order
                if len(self._passes) > _PASSES_KEPT:
                    self._passes.popitem(last=False)
        return order

    def _compute_pass(self, system: int, number: int) -> np.ndarray:
        """A pass depends on the end of the one before where a micro-batch reaches over from that.

        The end of a pass could itself depend on the pass before, and so on; but with 2 b frames or more,
        `_separate` never reaches the end, and with less the chain starts anew where passes and micro-batches
        end together, at most b passes earlier.
        """
        n, b = int(self.n_frames[system]), int(self.batch_sizes[system])
        start = number
        if n < 2 * b:
            while start * n % b:
                start -= 1
        elif start * n % b:
            start -= 1
        order = self._shuffled(system, start)
        for following in range(start + 1, number + 1):
            reaching = following * n % b
            held = order[n - reaching :]
            order = _separate(self._shuffled(system, following), held, b - reaching if reaching else 0)
        return order

    def _shuffled(self, system: int, number: int) -> np.ndarray:
        bits = _philox(self.seed, _FRAMES, (0, 0, system, number)).random_raw(int(self.n_frames[system]))
        return np.argsort(bits, kind="stable")


def _separate(order: np.ndarray, held: np.ndarray, count: int) -> np.ndarray:
    """Let the first `count` entries hold none of `held`, by swaps with the nearest later free entries."""
    is_held = np.zeros(len(order), dtype=bool)
    is_held[held] = True
    clashes = np.flatnonzero(is_held[order[:count]])
    if len(clashes):
        free = count + np.flatnonzero(~is_held[order[count:]])[: len(clashes)]
        order[clashes], order[free] = order[free], order[clashes]
    return order


def _occurrence(values: np.ndarray) -> np.ndarray:
    """For each entry, how many equal entries come before it."""
    by_value = np.argsort(values, kind="stable")
    sorted_values = values[by_value]
    first = np.searchsorted(sorted_values, sorted_values, side="left")
    result = np.empty(len(values), dtype=np.int64)
    result[by_value] = np.arange(len(values)) - first
    return result


def _philox(seed: int, purpose: int, counter: tuple[int, int, int, int]) -> np.random.Philox:
    # Arrays, because NumPy would turn lists with integers above 2**63 into floats, and lose their last digits.
    key = np.array([seed % 2**64, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array(counter, dtype=np.uint64))
