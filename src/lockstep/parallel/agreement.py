"""All ranks must work on the same: setup compared at the start, weights given out then and compared at every save."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from lockstep.errors import UserError
from lockstep.parallel.group import Group


class DisagreementError(RuntimeError):
    """Ranks that should have trained the same weights have not."""


def check_same_setup(setup: Mapping[str, object], group: Group) -> None:
    """Compares things that every rank has read by itself; where they differ, all ranks stop and name those that do."""
    own = {name: hashlib.blake2b(repr(thing).encode(), digest_size=16).digest() for name, thing in setup.items()}
    all_ranks = group.all_gather_object(own)
    for name in own:
        different = [rank for rank, other in enumerate(all_ranks) if other[name] != all_ranks[0][name]]
        if different:
            raise UserError(
                f"not the same on all ranks: what {_ranks(different)} found differs from what rank 0 found",
                where=name,
                remedy="start all ranks in the same folder of a file system that all nodes share, or keep copies alike",
            )


def _ranks(numbers: list[int]) -> str:
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {', '.join(map(str, numbers))}"


def share_weights(tensors: Iterable[torch.Tensor], group: Group) -> None:
    """Gives all ranks the values of rank 0, in one message for each type of number."""
    if group.size == 1:
        return
    by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for alike in by_kind.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        group.broadcast(flat)
        for tensor, piece in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(piece.view(tensor.shape))


def check_same_weights(tensors: Iterable[torch.Tensor], group: Group) -> str:
    """Compares a hash of the weights over the ranks and returns it; a difference names the ranks that differ.

    The reference is what most ranks hold, and rank 0's where there is no majority.
    """
    own = hash_weights(tensors)
    hashes = group.all_gather_object(own)
    votes = Counter(hashes)
    most = max(votes.values())
    reference = next(h for h in hashes if votes[h] == most)
    different = [rank for rank, value in enumerate(hashes) if value != reference]
    if different:
        raise DisagreementError(
            f"the weights differ on {_ranks(different)} from those of rank {hashes.index(reference)}, "
            f"in step {group.progress.step}: nothing is saved"
        )
    return str(reference)


def hash_weights(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
