"""`python -m graphmem`."""

from __future__ import annotations

import sys

from graphmem.cli import main

sys.exit(main())
