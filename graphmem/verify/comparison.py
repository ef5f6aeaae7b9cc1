"""Compare a recording with a prediction, event by event, then their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from graphmem.verify.changes import Change, follow_order
from graphmem.verify.figures import Figures
from graphmem.verify.prediction import Prediction
from graphmem.verify.recording_files import Recorded
from graphmem.verify.window import Start


@dataclass(frozen=True)
class Comparison:
    """A recording and a prediction, compared.

    Attributes:
        name: the recording's name.
        target: the prediction's target.
        start: where in the prediction the comparison starts.
        recorded, predicted: the events of both.
        first_difference: the index of the first events that differ, which is the length of the
            shorter side if that one merely ends; None if all are equal.
        recorded_figures: None if the recording lacks its initial state.
        predicted_figures: for the same window.
    """

    name: str
    target: str
    start: str
    recorded: tuple[Change, ...]
    predicted: tuple[Change, ...]
    first_difference: int | None
    recorded_figures: Figures | None
    predicted_figures: Figures

    @property
    def is_equal(self) -> bool:
        """Whether all events and all known figures are equal."""
        same_figures = self.recorded_figures in (None, self.predicted_figures)
        return self.first_difference is None and same_figures

    @property
    def only_recorded(self) -> list[tuple[int, int]]:
        """Requested bytes and how many more allocations of that size the recording has."""
        return _surplus(self.recorded, self.predicted)

    @property
    def only_predicted(self) -> list[tuple[int, int]]:
        """Requested bytes and how many more allocations of that size the prediction has."""
        return _surplus(self.predicted, self.recorded)


def compare(recorded: Recorded, prediction: Prediction, start: Start) -> Comparison:
    """Compare a recording with a prediction from `start` on.

    Raises:
        InputError: the prediction has no such start.
    """
    predicted = follow_order(prediction.changes(start), recorded.changes)
    return Comparison(
        name=recorded.name,
        target=prediction.name,
        start=str(start),
        recorded=recorded.changes,
        predicted=tuple(predicted),
        first_difference=_first_difference(recorded.changes, predicted),
        recorded_figures=recorded.figures,
        predicted_figures=prediction.figures(start),
    )


def _first_difference(recorded: Iterable[Change], predicted: Iterable[Change]) -> int | None:
    for index, (one, other) in enumerate(zip_longest(recorded, predicted)):
        if one is None or other is None or not one.is_like(other):
            return index
    return None


def _surplus(more: Iterable[Change], fewer: Iterable[Change]) -> list[tuple[int, int]]:
    counts = Counter(change.nbytes for change in more if change.is_alloc)
    counts.subtract(change.nbytes for change in fewer if change.is_alloc)
    return sorted((nbytes, count) for nbytes, count in counts.items() if count > 0)
