"""Make the pictures of the README, by running its snippets in full: what it shows is what its code draws.

python docs/pictures.py
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WANTED = ("value.png", "interval.png", "gain.png")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for code in re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S):
            exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
        for name in WANTED:
            shutil.copy(name, ROOT / "docs" / "images" / name)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
