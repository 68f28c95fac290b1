"""The screen that ends a reproduction: kept with a digest of what it came from, and shown again if that is the same.

Whatever differs, be it one byte of the code, a record, a picture or an option, the report is made again.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from reproduction import FULL_RUN
from twoclock import cli, storage

# A line of the screen, and how `rich` prints it.
Line = tuple[str, Mapping[str, bool | str]]
_NAME = "screen"
_CODE = (Path(__file__).parent, Path(str(files("twoclock"))), FULL_RUN)
_VARIABLES = ("JAX", "MPL", "TWOCLOCK", "XLA")
_OF_MAKE = "TWOCLOCK_AGAIN"  # what to call after Ctrl-C, which no report has


def show(lines: Iterable[Line]) -> None:
    """Print the lines."""
    for text, style in lines:
        cli.OUT.print(text, markup=False, highlight=False, **style)  # type: ignore[arg-type]


def show_again(folder: Path, source: str) -> bool:
    """Print the screen that was kept, if nothing that it came from has changed since."""
    kept = storage.note(folder, _NAME)
    if not kept or kept.get("source") != source or kept.get("results") != results(folder):
        return False
    made = datetime.fromisoformat(kept["made"])
    show([(f"Nothing has changed since {made.day} {made:%B %Y, %H:%M}, so this is what it was then:", {})])
    show(kept["lines"])
    return True


def keep(folder: Path, source: str, lines: Sequence[Line]) -> None:
    """Keep the screen of a report that is complete."""
    made = datetime.now().isoformat(timespec="seconds")
    content = {"source": source, "results": results(folder), "made": made, "lines": lines}
    storage.put_note(folder, _NAME, content)


def source(args: Sequence[str], folder: Path) -> str:
    """The digest of what a report comes from beside its records: options, settings, code, and what is installed."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name != _OF_MAKE}
    installed = sorted({entry.name for path in sys.path for entry in Path(path).glob("*.dist-info")})
    words = [list(args), str(folder), sorted(settings.items()), sys.version, installed]
    return _digest(json.dumps(words), _CODE)


def results(folder: Path) -> str:
    """The digest of all records, pictures and pages; the screen itself and the files of a run in progress apart."""
    return _digest("", [folder], leave_out=folder / f"{_NAME}.json")


def _digest(words: str, folders: Iterable[Path], leave_out: Path | None = None) -> str:
    digest = hashlib.sha256(words.encode(errors="surrogateescape"))
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".pyc" or path.name.startswith(".") or path == leave_out or not path.is_file():
                continue
            with suppress(OSError), path.open("rb") as file:  # one that another process has just removed
                content = hashlib.file_digest(file, "sha256").hexdigest()
                digest.update(f"{path} {content}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
