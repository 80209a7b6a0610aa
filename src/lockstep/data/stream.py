"""The one endless sequence of micro-batches: which frames are number m, whoever asks.

It is a pure function of the seed and of the data, never of the ranks, so that any number of ranks can share
it out, and a restart on another number of them goes on exactly where it stopped.

Randomness is counter-based (Philox, splitmix64): each draw has a fixed place in the random sequence, and only the raw
bits of NumPy's generator are used, because NumPy keeps those the same between versions, unlike `permutation`. The
order of a large system's pass is a permutation that is computed place by place and never stored, so that a draw costs
the same whatever the number and the size of the systems.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from lockstep.data.scramble import Permutation
from lockstep.errors import CheckpointError

_BLOCK = 4096
_REPLAY = 1 << 20
_REMEMBERED = 1 << 20
"""Frame numbers of whole passes that are remembered at most, over all systems."""
_SHUFFLED = 64
"""Frames up to which a pass is shuffled as a whole instead of computed place by place."""
_SYSTEMS, _FRAMES = 0, 1  # separate keys, so that the two kinds of draws never meet
_VERSION = 2
_OTHER_ORDER = 1  # the version that shuffled large systems in another way


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
        self._computed = (self.n_frames > _SHUFFLED) & (self.n_frames >= 3 * self.batch_sizes)
        self._passes: OrderedDict[int, tuple[int, np.ndarray]] = OrderedDict()
        self._remembered = 0
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
        here = min(b, n - start)
        parts = [(first, start, here)] if here == b else [(first, start, here), (first + 1, 0, b - here)]
        if self._computed[system]:
            return np.concatenate([self._middle(system, *part) for part in parts])
        return np.concatenate([self._pass(system, number)[at : at + count] for number, at, count in parts])

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
        if state.get("version") not in (_VERSION, _OTHER_ORDER):
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
        if state["version"] == _OTHER_ORDER and self._computed.any():
            found.append(
                "an earlier version of the program shuffled frames in another order: it goes on at the same place"
                " in the new order, where frames of the current pass may come again or not at all"
            )
        counts = (
            ("n_systems", len(self.n_frames), "systems"),
            ("n_frames", int(self.n_frames.sum()), "frames"),
        )
        for key, now, noun in counts:
            if state[key] != now:
                found.append(f"there were {state[key]} {noun} and now there are {now}")
        same_size = state["n_systems"] == len(self.n_frames) and state["n_frames"] == int(self.n_frames.sum())
        if same_size and state["fingerprint"] != self.fingerprint():
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

    def _middle(self, system: int, number: int, start: int, count: int) -> np.ndarray:
        """Places `start` to `start + count` of a pass of at least three micro-batches, computed by themselves.

        Only the first two micro-batches' worth of places can differ from the permutation, where the pass before
        reaches over into this one.
        """
        n, b = int(self.n_frames[system]), int(self.batch_sizes[system])
        order = Permutation(n, (self.seed, system, number))
        reaching = number * n % b
        if not reaching or start >= 2 * b:
            return order(np.arange(start, start + count))
        held = Permutation(n, (self.seed, system, number - 1))(np.arange(n - reaching, n))
        places = order(np.arange(max(2 * b, start + count)))
        return _separate(places, held, b - reaching)[start : start + count]

    def _pass(self, system: int, number: int) -> np.ndarray:
        """All frames of a pass, in the order in which they are taken; for systems of few frames or micro-batches.

        A pass depends on the end of the one before where a micro-batch reaches over from that, whose end depends on
        the pass before, and so on; the chain starts anew where passes and micro-batches end together, at most b
        passes earlier. It is followed from the last pass that is remembered.
        """
        n, b = int(self.n_frames[system]), int(self.batch_sizes[system])
        start = number
        while start * n % b:
            start -= 1
        with self._lock:
            known, order = self._passes.get(system, (-1, None))
        if order is None or not start <= known <= number:
            known, order = start, self._shuffled(system, start)
        for following in range(known + 1, number + 1):
            reaching = following * n % b
            order = _separate(self._shuffled(system, following), order[n - reaching :], b - reaching if reaching else 0)
        self._remember(system, number, order)
        return order

    def _remember(self, system: int, number: int, order: np.ndarray) -> None:
        with self._lock:
            self._remembered += len(order) - len(self._passes.pop(system, (0, order[:0]))[1])
            self._passes[system] = number, order
            while self._remembered > _REMEMBERED:
                self._remembered -= len(self._passes.popitem(last=False)[1][1])

    def _shuffled(self, system: int, number: int) -> np.ndarray:
        bits = _philox(self.seed, _FRAMES, (0, 0, system, number)).random_raw(int(self.n_frames[system]))
        return np.argsort(bits, kind="stable")


def _separate(order: np.ndarray, held: np.ndarray, count: int) -> np.ndarray:
    """Let the first `count` entries hold none of `held`, by swaps with the nearest later free entries."""
    is_held = np.isin(order, held)
    clashes = np.flatnonzero(is_held[:count])
    if len(clashes):
        free = count + np.flatnonzero(~is_held[count:])[: len(clashes)]
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
