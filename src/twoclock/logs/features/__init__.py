"""Features φ(s, a) of logged transitions: a name, a specification, or any function of (state, action)."""

from twoclock.logs.features.bases import Fourier, Rbf, Tiles
from twoclock.logs.features.build import build
from twoclock.logs.features.network import Network
from twoclock.logs.features.onehot import OneHot
from twoclock.logs.features.protocol import Features, Matrix

__all__ = ["Features", "Fourier", "Matrix", "Network", "OneHot", "Rbf", "Tiles", "build"]
