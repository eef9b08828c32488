"""`import hypersphere` against `import torch`, each in fresh interpreters, in turns."""

from __future__ import annotations

import subprocess
import sys

from harness import measure, write


def fresh(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def main() -> None:
    rows = measure(
        {
            "import torch": lambda: fresh("import torch"),
            "import hypersphere": lambda: fresh("import torch, hypersphere"),
        },
        baseline="import torch",
        limits={"import hypersphere": 1.05},
        memory=False,
    )
    write("imports", {"fresh interpreter": rows})


if __name__ == "__main__":
    main()
