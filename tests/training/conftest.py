"""Makes `small_run` importable: it is shared by the tests here and by the processes they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
