"""From coordinates to environment rows, and from their gradient back to forces. Knows no weights."""

from lockstep.geometry.basis import SplineBasis
from lockstep.geometry.cache import PairCache
from lockstep.geometry.environment import Environment, EnvironmentBuilder, Features
from lockstep.geometry.moments import Moments
from lockstep.geometry.pairs import Pairs, find_pairs
from lockstep.geometry.radial import Cutoff
from lockstep.geometry.rows import Rows
from lockstep.geometry.scale import RowScale

__all__ = [
    "Cutoff",
    "Environment",
    "EnvironmentBuilder",
    "Features",
    "Moments",
    "PairCache",
    "Pairs",
    "RowScale",
    "Rows",
    "SplineBasis",
    "find_pairs",
]
