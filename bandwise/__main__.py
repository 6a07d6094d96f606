"""``python -m bandwise``."""

from __future__ import annotations

import sys

from bandwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
