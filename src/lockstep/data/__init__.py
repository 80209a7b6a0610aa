"""Systems on disk -> flat index -> one stream of micro-batches -> this rank's loader."""

from lockstep.data.arrays import ATOMS, Array, named, requiring
from lockstep.data.chosen import ChosenDataSet
from lockstep.data.dataset import DataSet
from lockstep.data.joint import JointDataSet, JointPlan, join_plans
from lockstep.data.loader import DpLoaderSet, depth_for, worker_count
from lockstep.data.microbatch import MicroBatch
from lockstep.data.plan import Plan, make_plan
from lockstep.data.probability import steps_for_epochs
from lockstep.data.search import find_systems
from lockstep.data.stream import Draw, Selection, Stream
from lockstep.data.summary import summary_lines

__all__ = [
    "ATOMS",
    "Array",
    "ChosenDataSet",
    "DataSet",
    "DpLoaderSet",
    "Draw",
    "JointDataSet",
    "JointPlan",
    "MicroBatch",
    "Plan",
    "Selection",
    "Stream",
    "depth_for",
    "find_systems",
    "join_plans",
    "make_plan",
    "named",
    "requiring",
    "steps_for_epochs",
    "summary_lines",
    "worker_count",
]
