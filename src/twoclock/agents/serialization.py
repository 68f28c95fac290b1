"""What the records of agents have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoclock import storage, validation
from twoclock.methods import serialize
from twoclock.protocols import InputError, Method

if TYPE_CHECKING:
    import pandas as pd


def read(path: str | Path, kind: str) -> tuple[dict[str, Any], pd.DataFrame, dict[str, Any]]:
    """The specification, history and arrays in the folder that an agent of this kind saved."""
    validation.check_path("path", path)
    spec, tables, trees = storage.load(path)
    if kind not in spec:
        raise InputError(f"`path` must be a folder that `{kind}.save` wrote, {path} is none")
    return spec, tables["history"], trees


def method_of(about: dict[str, Any], method: Method | None) -> Method:
    """The method that was saved, unless it is given."""
    if method is None:
        if about["method"] is None:
            raise InputError("`method` must be given: it holds a function, which no record can; pass it as it was")
        method = serialize.from_json(about["method"])
    return method
