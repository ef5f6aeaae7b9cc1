"""Leave the process of a command, also if a program's thread would keep it.

Python waits for threads before it ends. One of a program that was stopped may wait for what will
never come, as for the queue of another thread.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def leave(exit_code: int) -> NoReturn:
    """End the process as Python does, but do not wait for threads."""
    if all(each.daemon for each in threading.enumerate() if each is not threading.main_thread()):
        sys.exit(exit_code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
