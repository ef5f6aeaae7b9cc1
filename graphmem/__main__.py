"""`python -m graphmem`, which is the command `graphmem`.

`-m` puts the current folder first on the path, where a `queue.py` would take the place of the
standard library's. The command has its own folder there, which a program that it runs replaces.
"""

from __future__ import annotations

import sys

if not sys.flags.safe_path:  # Python 3.11's `-P` leaves the folder out
    sys.path[0] = sys.prefix  # holds no modules

from graphmem.cli import main

sys.exit(main())
