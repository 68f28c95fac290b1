"""Faults tried on purpose: kills, damage, full disks, odd arguments. `make faults` runs them all.

Each campaign is a file with a ``NAME`` and one of two generators of trials, drawn from the seed of the run:

* ``trials(scale, seed)`` yields one ``Trial`` after the other;
* ``trial(i, rng)``, with ``TRIALS`` of them, is called in a separate process, which is replaced when it hangs,
  dies or exhausts the memory. It returns the target of the fault, and what is wrong with the answer or None.

A failure is a wrong result, a foreign exception, a traceback, more than one line, a hang, or something lost.
"""
