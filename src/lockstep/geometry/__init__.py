"""From coordinates to environment rows, and from their gradient back to forces. Knows no weights."""

from lockstep.config.cutoff import Cutoff
from lockstep.geometry.basis import SplineBasis
from lockstep.geometry.cache import PairCache
from lockstep.geometry.environment import Bases, Environment, EnvironmentBuilder, Features
from lockstep.geometry.moments import Moments
from lockstep.geometry.pairs import Pairs, SamePlaceError, batch_pairs, find_pairs, has_close_atoms
from lockstep.geometry.rows import Rows
from lockstep.geometry.scale import RowScale
from lockstep.geometry.view import Columns, View

__all__ = [
    "Bases",
    "Columns",
    "Cutoff",
    "Environment",
    "EnvironmentBuilder",
    "Features",
    "Moments",
    "PairCache",
    "Pairs",
    "RowScale",
    "Rows",
    "SamePlaceError",
    "SplineBasis",
    "View",
    "batch_pairs",
    "find_pairs",
    "has_close_atoms",
]
