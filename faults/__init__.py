"""Faults tried on purpose: kills, damage, full disks, rival writers, wrong arguments. `make faults` runs them all.

Each campaign is a file with a ``NAME`` and ``trials(scale)``, which yields one ``Trial`` after the other; a failure is
a wrong result, a traceback, more than one line, a hang, or something lost.
"""
