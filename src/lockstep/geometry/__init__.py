"""From coordinates to environment rows, and from their gradient back to forces. Knows no weights."""

from lockstep.geometry.cache import PairCache
from lockstep.geometry.environment import Environment, EnvironmentBuilder, Features
from lockstep.geometry.pairs import Pairs, find_pairs
from lockstep.geometry.radial import Cutoff
from lockstep.geometry.scale import RowScale

__all__ = [
    "Cutoff",
    "Environment",
    "EnvironmentBuilder",
    "Features",
    "PairCache",
    "Pairs",
    "RowScale",
    "find_pairs",
]
