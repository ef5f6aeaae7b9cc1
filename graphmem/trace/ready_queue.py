"""The order in which the autograd engine runs nodes that are ready.

`ReadyQueue` (torch/csrc/autograd/engine.h) is a `std::priority_queue` whose comparison puts the
highest sequence number first; `AccumulateGrad` has the highest there is. Nodes of equal rank come
out in the order that libstdc++'s binary heap leaves them, so the heap is sifted here as libstdc++
does (bits/stl_heap.h, `__push_heap` and `__adjust_heap`): Python's `heapq` breaks ties differently.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """Items by descending rank."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, T]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, rank: int, item: T) -> None:
        """Add an item."""
        self._heap.append((rank, item))
        self._sift_up(len(self._heap) - 1, 0, (rank, item))

    def pop(self) -> T:
        """Remove and return the item of the highest rank."""
        heap = self._heap
        top, last = heap[0], heap.pop()
        if heap:
            self._sift_down(last)
        return top[1]

    def _sift_up(self, hole: int, top: int, entry: tuple[int, T]) -> None:
        heap = self._heap
        while hole > top and heap[(hole - 1) // 2][0] < entry[0]:
            heap[hole] = heap[(hole - 1) // 2]
            hole = (hole - 1) // 2
        heap[hole] = entry

    def _sift_down(self, entry: tuple[int, T]) -> None:
        heap, hole = self._heap, 0
        while 2 * hole + 2 < len(heap):
            child = 2 * hole + 2
            if heap[child][0] < heap[child - 1][0]:
                child -= 1
            heap[hole] = heap[child]
            hole = child
        if 2 * hole + 1 < len(heap):
            heap[hole] = heap[2 * hole + 1]
            hole = 2 * hole + 1
        self._sift_up(hole, 0, entry)
