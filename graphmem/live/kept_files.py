"""Files that were there before the run, and that a script would replace by weights of zeros.

Tensors on the virtual card have no values, so what a script saves of them is zeros. A checkpoint of
an earlier, real run stays as it is, and the report says so:
(1) `torch.save` writes to a new file, which takes the old one's place unless it has such zeros;
(2) safetensors' `save_file` writes nothing if one of its tensors is on the card.

What the run itself has made may be replaced. Not covered: a file that the script opens, removes or
renames by itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from graphmem.frames import short_path
from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import Replacement, replaced


class KeptFiles:
    """Keeps the files that are older than this object."""

    def __init__(self, recorder: Recorder, location: Location) -> None:
        self._recorder = recorder
        self._location = location
        self._start = time.time()
        self._zeros = 0

    def note_zeros(self) -> None:
        """Note that `torch.save` is given zeros for a tensor on the card."""
        self._zeros += 1

    def replacements(self) -> list[Replacement]:
        """The attributes to replace."""
        open_writer: Any = torch.serialization._open_zipfile_writer

        def opened(file: Any) -> Any:
            if isinstance(file, (str, os.PathLike)) and self._is_older(Path(file)):
                return self._aside(Path(file).resolve(), open_writer)
            return open_writer(file)

        return [(torch.serialization, "_open_zipfile_writer", opened)]

    def safetensors(self) -> AbstractContextManager[None]:
        """Keep the files of safetensors as well, while the context is open."""

        def prepare(module: ModuleType) -> AbstractContextManager[None]:
            save: Any = vars(module)["save_file"]

            def save_file(tensors: dict[str, Any], filename: Any, *args: Any, **kwargs: Any) -> Any:
                is_virtual = any(map(self._recorder.is_on_device, tensors.values()))
                if is_virtual and self._is_older(Path(filename)):
                    return self._keep(Path(filename))
                return save(tensors, filename, *args, **kwargs)

            return replaced([(module, "save_file", save_file)])

        return prepared("safetensors.torch", prepare)

    def _is_older(self, file: Path) -> bool:
        """Whether there is a file that the run has not written."""
        return file.is_file() and file.stat().st_mtime < self._start

    def _keep(self, file: Path) -> None:
        self._recorder.assume(
            f"{short_path(str(file))}, which was there before",
            "kept as it was",
            "tensors on the card have no values to save",
            self._location.place(),
        )

    @contextmanager
    def _aside(self, file: Path, open_writer: Callable[[str], Any]) -> Iterator[Any]:
        """Write a new file of the same name, and put it into the old one's place if it may be."""
        folder = Path(tempfile.mkdtemp(prefix=".graphmem-", dir=file.parent))
        before = self._zeros
        try:
            with open_writer(str(folder / file.name)) as writer:
                yield writer
            if self._zeros == before:
                (folder / file.name).replace(file)
            else:
                self._keep(file)
        finally:
            shutil.rmtree(folder)
