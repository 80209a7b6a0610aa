"""The fitting nets: atomic energies and their gradient, one net for each type of centre or one for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.config import EnergyFittingConfig
from lockstep.network.contraction import AsItIs, Contraction
from lockstep.network.head import Block, energies_and_gradient
from lockstep.network.mlp import MLP, fitting_net
from lockstep.network.precision import torch_dtype


class EnergyFitting(nn.Module):
    """Atomic energies without their bias.

    Frame and atom parameters are brought to zero mean and unit spread and appended to the descriptor. Types with a
    vacuum energy (`atom_ener`) have the net's value for a zero descriptor subtracted, so that an atom without
    neighbours has exactly that energy; one net for all types has it subtracted for all.

    Args:
        contraction: from a descriptor's sums to what the nets see.
        mixed_types: one net serves centres of every type.

    Attributes:
        product_dtype: precision of the matrix products, from the descriptor to the energies; that of the weights,
            unless training is in mixed precision.
    """

    parameter_mean: Tensor
    parameter_scale: Tensor

    def __init__(
        self,
        config: EnergyFittingConfig,
        ntypes: int,
        contraction: Contraction,
        generator: torch.Generator,
        mixed_types: bool = False,
    ) -> None:
        super().__init__()
        self.dtype = torch_dtype(config.precision)
        self.product_dtype = self.dtype
        self.contraction, self.mixed_types = contraction, mixed_types
        n_parameters = config.numb_fparam + config.numb_aparam
        self.vacuum = [value is not None for value in config.atom_ener] or [False] * ntypes
        if mixed_types:
            self.vacuum = [any(self.vacuum)] * ntypes
        self.nets = nn.ModuleList(
            fitting_net(
                contraction.n_out + n_parameters,
                config.neuron,
                config.activation_function,
                config.resnet_dt,
                self.dtype,
                generator,
            )
            for _ in range(1 if mixed_types else ntypes)
        )
        self.register_buffer("parameter_mean", torch.zeros(n_parameters, dtype=torch.float64))
        self.register_buffer("parameter_scale", torch.ones(n_parameters, dtype=torch.float64))
        self._freeze(config.trainable_layers)

    def net(self, centre_type: int) -> MLP:
        net = self.nets[0 if self.mixed_types else centre_type]
        assert isinstance(net, MLP)
        return net

    @property
    def dim_descriptor(self) -> int:
        return self.contraction.n_out

    def forward(self, x: Tensor, parameters: Tensor | None, centre_blocks: tuple[slice, ...]) -> tuple[Tensor, Tensor]:
        """Energies [C] and dE/dX of centres with sums X [C, ...], whose ranges by type are `centre_blocks`.

        `parameters` is [C, numb_fparam + numb_aparam].
        """
        present = [(t, block) for t, block in enumerate(centre_blocks) if block.stop > block.start]
        if parameters is not None:
            parameters = ((parameters - self.parameter_mean) * self.parameter_scale).to(self.product_dtype)
        blocks = [Block(block, self.net(t)) for t, block in present]
        if self.mixed_types:
            blocks = [Block(slice(0, x.shape[0]), self.net(0))]
        energy, gradient = energies_and_gradient(x.to(self.product_dtype), self.contraction, parameters, blocks)
        if any(self.vacuum):
            energy = energy - torch.cat([self._vacuum_energy(t, block, parameters) for t, block in present])
        return energy, gradient

    def _vacuum_energy(self, centre_type: int, block: slice, parameters: Tensor | None) -> Tensor:
        """What the net says about centres without descriptors, where that is to be taken off."""
        n_centres, device = block.stop - block.start, self.parameter_mean.device
        if not self.vacuum[centre_type]:
            return torch.zeros(n_centres, dtype=self.product_dtype, device=device)
        away = torch.zeros(n_centres, self.dim_descriptor, dtype=self.product_dtype, device=device)
        own = None if parameters is None else parameters[block]
        # By the same operations as all energies: those of lone atoms are then what they were given as, to the last bit.
        blocks = [Block(slice(0, n_centres), self.net(centre_type))]
        energy, _ = energies_and_gradient(away, AsItIs(self.dim_descriptor), own, blocks)
        return energy

    def _freeze(self, trainable: Sequence[bool]) -> None:
        for net in self.nets:
            assert isinstance(net, MLP)
            for layer, flag in zip(net.layers, trainable, strict=True):
                layer.requires_grad_(flag)
