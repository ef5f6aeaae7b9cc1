"""What was there before graphmem began belongs to the caller, and is put back when it is done.

While the virtual card is there, a model of the caller's moves to it and trains: its tensors become
fake, its gradients and its optimizer's state change, its random generators draw. `put_back()` notes
everything before, and undoes it at the end, also after an error or Ctrl-C:

  (1) modules, optimizers, schedulers and gradient scalers, with the containers and plain objects
      that hang on their attributes (`objects.py`);
  (2) tensors: which memory they have, their gradients, hooks and `requires_grad` (`tensors.py`);
  (3) values that are written in place, copied before the first write (`values.py`);
  (4) random generators (`generators.py`) and what can be set in torch (`settings.py`).

One program at a time: `turn()` (`turns.py`).

Not covered: what the caller's own objects hold outside of (1), files, the positions of iterators,
arrays of numpy, and generators that hang neither on (1) nor on the caller's functions until they
draw.
"""

from __future__ import annotations

from graphmem.caller.belongings import Belongings, freeze, put_back
from graphmem.caller.turns import turn

__all__ = ["Belongings", "freeze", "put_back", "turn"]
