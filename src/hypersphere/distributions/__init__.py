"""Directions as random variables, in the manner of `torch.distributions`."""

from .power_spherical import PowerSpherical
from .uniform import UniformOnSphere
from .von_mises_fisher import VonMisesFisher

__all__ = ["PowerSpherical", "UniformOnSphere", "VonMisesFisher"]

from . import divergences as divergences  # registers the pairs with torch.distributions
