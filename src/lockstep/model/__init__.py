"""Geometry and network together: a potential with energy, forces and virial."""

from lockstep.model.potential import Potential, Prediction

__all__ = ["Potential", "Prediction"]
