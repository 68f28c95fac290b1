"""The paper, reproduced: experiments as data, the verdicts on them, and their report."""
