"""Methods: the algorithms that step θ and ω."""

from twoclock.methods.auto import Auto
from twoclock.methods.fast import Fast
from twoclock.methods.matrix_free_zap import MatrixFreeZap
from twoclock.methods.plug_in import BatchMeans, Lstd, PlugIn
from twoclock.methods.polyak import Polyak
from twoclock.methods.presets import adam, averaged_tdc, ma_soba, running_means, sgda, soba, ttsa
from twoclock.methods.richardson_romberg import RichardsonRomberg
from twoclock.methods.saba import SABA
from twoclock.methods.standard import Standard
from twoclock.methods.svrg import SVRG, VRTDC
from twoclock.methods.td_lambda import TIDBD, Intentional, ObGD, SwiftTD
from twoclock.methods.zap import Zap

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
