"""`python -m graphmem`, which is the command `graphmem`.

`-m` puts the current folder first on the path, where a `queue.py` would take the place of the
standard library's; a command adds the folder of the program that it reads, as for a script.
"""

from __future__ import annotations

import sys

if not sys.flags.safe_path:  # Python 3.11's `-P` leaves the folder out
    del sys.path[0]

from graphmem.cli import main

sys.exit(main())
