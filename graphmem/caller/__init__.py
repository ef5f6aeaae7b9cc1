"""Restore everything that belonged to the caller before graphmem began.

While the virtual card is on, the caller's model moves to it and trains: its tensors become fake,
its gradients and its optimizer's state change, its random generators draw. `put_back()` notes
everything beforehand and restores it at the end, also after an error or Ctrl-C:

  (1) modules, optimizers, schedulers and gradient scalers, with the containers and plain objects
      in their attributes (`objects.py`);
  (2) tensors: their memory, gradients, hooks and `requires_grad` (`tensors.py`);
  (3) values that are written in place, copied before the first write (`values.py`);
  (4) random generators (`generators.py`) and torch's settings (`settings.py`).

One program at a time: `turn()` (`turns.py`), `clean_turn()` for an analysis.

Not covered: what the caller's own objects hold outside of (1), files, the positions of iterators,
numpy arrays, and generators that neither (1) nor the caller's functions hold, until they draw.
"""

from __future__ import annotations

from graphmem.caller.belongings import Belongings, clean_turn, collect, freeze, put_back
from graphmem.caller.turns import turn

__all__ = ["Belongings", "clean_turn", "collect", "freeze", "put_back", "turn"]
