"""The helpers of the neighbouring folders are imported here, too."""

import sys
from pathlib import Path

for folder in ("privacy", "protocol", "shell"):
    path = str(Path(__file__).parents[1] / folder)
    if path not in sys.path:
        sys.path.append(path)
