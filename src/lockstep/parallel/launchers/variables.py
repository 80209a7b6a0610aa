"""Reading launchers' environment variables, with errors that show names and values."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.errors import UserError
from lockstep.parallel.context import UNKNOWN, Meet


def integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The variable as a whole number >= 0; `default` where it is unset, an error where there is no default."""
    text = environ.get(name)
    if text is None:
        if default is not None:
            return default
        raise UserError(
            "is not set, though other variables of the same launcher are",
            where=f"environment variable {name}",
            remedy="start all ranks with the launcher, or unset its variables to train in one process",
        )
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise UserError(
            "expected a whole number that is not negative",
            where=f"environment variable {name}",
            value=text,
            remedy="the launcher sets it; unset it to train in one process",
        )
    return number


def rank_of(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    """Rank and size, checked against each other."""
    rank, size = integer(environ, rank_name), integer(environ, size_name)
    if not 0 <= rank < size:
        raise UserError(
            f"rank {rank} does not exist among {size} ranks",
            where=f"environment variables {rank_name}, {size_name}",
            value=(environ[rank_name], environ[size_name]),
            remedy="the launcher sets both; one of them was changed afterwards",
        )
    return rank, size


def local_of(environ: Mapping[str, str], rank_name: str, size_name: str, size: int) -> tuple[int, int]:
    """Local rank and size; UNKNOWN where the launcher does not tell them."""
    if rank_name not in environ or size_name not in environ:
        return UNKNOWN, UNKNOWN
    local_rank, local_size = rank_of(environ, rank_name, size_name)
    if local_size > size:
        raise UserError(
            f"{local_size} ranks on this node, but only {size} in the whole job",
            where=f"environment variable {size_name}",
            value=environ[size_name],
            remedy="the launcher sets it; it was changed afterwards",
        )
    return local_rank, local_size


def meet_at_master(environ: Mapping[str, str]) -> Meet | None:
    """MASTER_ADDR and MASTER_PORT, where the user or the launcher gave them."""
    if "MASTER_ADDR" not in environ or "MASTER_PORT" not in environ:
        return None
    return Meet("address", environ["MASTER_ADDR"], integer(environ, "MASTER_PORT"))
