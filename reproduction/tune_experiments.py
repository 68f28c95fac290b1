"""Tune the methods of experiments again, and put the settings where the experiments read them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from twoclock import storage
from twoclock.protocols import InputError

if TYPE_CHECKING:
    from reproduction.tuned_settings import Search


def retune(asked: Mapping[str, ModuleType], known: Mapping[str, ModuleType], folder: Path | None) -> None:
    """Search, and write NAME.json for each experiment when all of its cases are done.

    Args:
        asked: the experiments to tune.
        known: all of them.
        folder: where to put the files; None puts them beside the experiments, where these read them.
    """
    from reproduction import tuned_settings

    tunable = [name for name, module in known.items() if hasattr(module, "searches")]
    for name in asked:
        if name not in tunable:
            raise InputError(f"`{name}` has nothing to tune; {', '.join(tunable)} have")
    console = Console(stderr=True)
    targets = {name: tuned_settings.place(name) if folder is None else folder / f"{name}.json" for name in asked}
    for target in targets.values():  # rather now than after the search
        storage.writable(target.parent)
    for name, module in asked.items():
        searches: Mapping[str, Search] = module.searches()
        entries = {}
        for number, (case, search) in enumerate(searches.items(), 1):
            began = time.monotonic()
            console.print(f"[bold]{name}[/], {search.title} ({number} of {len(searches)}): {', '.join(search.methods)}")
            found = search.run(progress=console.is_terminal)
            entries[case] = tuned_settings.entry(search, found)
            console.print(f"{found}\n{time.monotonic() - began:.0f} s", highlight=False, markup=False)
        storage.put(targets[name], tuned_settings.text(name, entries))
        tuned_settings.stored.cache_clear()
        console.print(f"wrote {targets[name]}")
