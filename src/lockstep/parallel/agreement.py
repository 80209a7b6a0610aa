"""All ranks must hold the same weights: given out at the start, compared at every save."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import torch

from lockstep.parallel.group import Group


class DisagreementError(RuntimeError):
    """Ranks that should have trained the same weights have not."""


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
            f"the weights differ on {'ranks' if len(different) > 1 else 'rank'} "
            f"{', '.join(map(str, different))} from those of rank {hashes.index(reference)}, "
            f"in step {group.progress.step}: nothing is saved"
        )
    return str(reference)


def hash_weights(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()
