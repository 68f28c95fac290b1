"""The paper, reproduced: experiments as data, the verdicts on them, and their report."""

from pathlib import Path

FULL_RUN = Path(__file__).parents[1] / "docs" / "full_run"  # the tables of the last full run
