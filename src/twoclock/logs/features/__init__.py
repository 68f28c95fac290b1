"""Features φ(s, a) of logged transitions: a name, a specification, or any function of (state, action)."""

from twoclock.logs.features.pair_features import PairFeatures, build
from twoclock.logs.features.state_features import Fourier, Matrix, Network, OneHot, Rbf, Tiles

__all__ = ["Fourier", "Matrix", "Network", "OneHot", "PairFeatures", "Rbf", "Tiles", "build"]
