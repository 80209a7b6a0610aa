"""Networks over environment features: atomic energies and their gradient. Knows no coordinates."""

from lockstep.network.energy import EnergyNetwork, NetworkOutput

__all__ = ["EnergyNetwork", "NetworkOutput"]
