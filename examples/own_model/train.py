"""A PyTorch model of your own, trained by Lockstep: python train.py, or torchrun --nproc_per_node=2 train.py"""

import sys

import numpy as np
import torch
from torch import nn

import lockstep
from lockstep.data import Array
from lockstep.geometry import Cutoff, find_pairs
from lockstep.tasks import Column, LossTerms, Metrics, Task


class PairPotential(nn.Module):
    """The energy as a sum over pairs of atoms, by a small net of their distance, and a constant for each atom."""

    def __init__(self, rcut, w):
        super().__init__()
        self.rcut, self.atom = rcut, nn.Parameter(torch.zeros(1))
        self.net = nn.Sequential(nn.Linear(1, w), nn.Tanh(), nn.Linear(w, w), nn.Tanh(), nn.Linear(w, 1))

    def forward(self, vector, centre, neighbour, force):
        """Energies [B] and forces [B, n, 3]; forces by autograd, and differentiable once more."""
        (n_frames, n_atoms), vector = force.shape[:2], vector.requires_grad_()
        r = vector.norm(dim=1, keepdim=True)
        pair = 0.5 * (self.net(r) * (1 - r / self.rcut) ** 2).squeeze(1)
        (pull,) = torch.autograd.grad(pair.sum(), vector, create_graph=True)
        forces = pull.new_zeros(n_frames * n_atoms, 3).index_add(0, centre, pull).index_add(0, neighbour, -pull)
        energies = (n_atoms * self.atom).expand(n_frames).index_add(0, centre // n_atoms, pair)
        return energies, forces.view_as(force)


class PairTask(Task):
    """What the program has to know about the model to train it."""

    title = "a pair potential of my own"
    columns = (Column("rmse"), Column("rmse_e"), Column("rmse_f"))

    def __init__(self, config, device):
        self.config, self.device, model = config, device, config.model
        torch.manual_seed(model["seed"])
        self.module = PairPotential(model["rcut"], model["width"]).to(device, torch.float64)
        self.cutoff = Cutoff(model["rcut"], rcut_smth=0.0, sel=(1000,))

    @classmethod
    def arrays(cls, config):
        return Array("energy", required=True), Array("force", tail=(3,), atomic=True, required=True)

    @classmethod
    def build(cls, job):
        return cls(job.config, job.device)

    def prepare(self, batch):
        """In a loader's thread, ahead of the training: find neighbours, bring everything to the device."""
        pairs = [find_pairs(*frame, self.cutoff) for frame in zip(batch.coord, batch.cell, batch.types, strict=True)]
        counts = np.concatenate([p.counts[:, 0] for p in pairs])
        first = np.arange(len(pairs)) * batch.coord.shape[1]
        arrays = {
            "vector": np.concatenate([p.vector for p in pairs]),
            "centre": np.repeat(np.arange(len(counts)), counts),
            "neighbour": np.concatenate([p.neighbour + f for p, f in zip(pairs, first, strict=True)]),
        }
        return {name: torch.as_tensor(array, device=self.device) for name, array in (arrays | batch.labels).items()}

    def loss(self, sample, lr):
        energy = sample.pop("energy")
        energies, forces = self.module(**sample)
        e, f = (energies - energy) / forces.shape[1], forces - sample["force"]
        total = self.config.loss["energy"] * e.square().mean() + self.config.loss["force"] * f.square().mean()
        sums = torch.stack([total, e.square().sum(), f.square().sum(), *torch.tensor([1.0, e.numel(), f.numel()])])
        return LossTerms(total, Metrics(self.columns, sums.detach()))

    def evaluate(self, sample, lr):
        return self.loss(sample, lr).metrics  # forces come from autograd: no torch.no_grad() here


if __name__ == "__main__":
    lockstep.train("input.json", task=PairTask, restart=sys.argv[1] if len(sys.argv) > 1 else None, profile=True)
