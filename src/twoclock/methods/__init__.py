"""Methods: the algorithms that step θ and ω."""

from twoclock.methods.averaging import Polyak, RichardsonRomberg
from twoclock.methods.fast import Fast, Standard
from twoclock.methods.matrix_free_zap import MatrixFreeZap
from twoclock.methods.plug_in import BatchMeans, Lstd, PlugIn
from twoclock.methods.presets import adam, averaged_tdc, ma_soba, running_means, sgda, soba, ttsa
from twoclock.methods.td_lambda import TIDBD, Intentional, ObGD, SwiftTD
from twoclock.methods.variance_reduction import SABA, SVRG, VRTDC
from twoclock.methods.zap import Auto, Zap

__all__ = [
    "SABA",
    "SVRG",
    "TIDBD",
    "VRTDC",
    "Auto",
    "BatchMeans",
    "Fast",
    "Intentional",
    "Lstd",
    "MatrixFreeZap",
    "ObGD",
    "PlugIn",
    "Polyak",
    "RichardsonRomberg",
    "Standard",
    "SwiftTD",
    "Zap",
    "adam",
    "averaged_tdc",
    "ma_soba",
    "running_means",
    "sgda",
    "soba",
    "ttsa",
]
