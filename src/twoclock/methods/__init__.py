"""One method, one file."""

from twoclock.methods.auto import Auto
from twoclock.methods.averaged_tdc import averaged, averaged_tdc
from twoclock.methods.batch_means import BatchMeans
from twoclock.methods.fast import Fast
from twoclock.methods.intentional import Intentional
from twoclock.methods.lstd import Lstd
from twoclock.methods.matrix_free_zap import MatrixFreeZap
from twoclock.methods.obgd import ObGD
from twoclock.methods.plug_in import PlugIn
from twoclock.methods.polyak import Polyak
from twoclock.methods.presets import adam, ma_soba, running_means, sgda, soba, ttsa
from twoclock.methods.richardson_romberg import RichardsonRomberg
from twoclock.methods.saba import SABA
from twoclock.methods.standard import Standard
from twoclock.methods.svrg import SVRG
from twoclock.methods.swift_td import SwiftTD
from twoclock.methods.tidbd import TIDBD
from twoclock.methods.vrtdc import VRTDC
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
    "averaged",
    "averaged_tdc",
    "ma_soba",
    "running_means",
    "sgda",
    "soba",
    "ttsa",
]
