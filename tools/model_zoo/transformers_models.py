"""Every model type of `transformers`: a tiny one with its most commonly trained head.

With `--testers FOLDER`, the library's own `ModelTester` makes configuration and inputs if that
folder has `test_modeling_NAME.py` (tests/models of the library's repository, which is not in the
wheel; rename its `tests`, so that it is not mistaken for graphmem's). Otherwise the configuration
is shrunk, and the inputs are those named by `forward`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto import configuration_auto, modeling_auto

from graphmem import TrainingStep
from tools.model_zoo.case import SEED, Case, seeded
from tools.model_zoo.tiny_configs import VOCABULARY, shrink, widen_vocabulary

HEADS = (
    "CAUSAL_LM SEQ_TO_SEQ_CAUSAL_LM IMAGE_TEXT_TO_TEXT VISION_2_SEQ SPEECH_SEQ_2_SEQ MASKED_LM "
    "IMAGE_CLASSIFICATION OBJECT_DETECTION SEMANTIC_SEGMENTATION DEPTH_ESTIMATION CTC "
    "AUDIO_CLASSIFICATION SEQUENCE_CLASSIFICATION VIDEO_CLASSIFICATION PRETRAINING "
    "ZERO_SHOT_IMAGE_CLASSIFICATION ZERO_SHOT_OBJECT_DETECTION MASKED_IMAGE_MODELING "
    "TIME_SERIES_PREDICTION TEXT_ENCODING"
).split()


@dataclass(frozen=True)
class Sizes:
    """Sizes of a tiny model and its inputs.

    Attributes:
        batch: examples.
        length: tokens of a text.
        scale: how many times the smallest width.
        vocabulary: tokens that there are.
    """

    batch: int = 2
    length: int = 7
    scale: int = 1
    vocabulary: int = VOCABULARY


def cases(testers: Path | None) -> Iterator[Case]:
    """One case for each model type that has a model."""
    for model_type in sorted(configuration_auto.CONFIG_MAPPING_NAMES):
        placeholders = Placeholders(Sizes())
        build = seeded(partial(_build, model_type, testers, placeholders))
        yield Case("transformers", model_type, build, placeholders.learn)


class Placeholders:
    """The number of image tokens in a text, which only the model knows: its error states it."""

    _TOLD = re.compile(r"tokens: \D*\d+\D*features \D*(\d+)")

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.each = 0
        self._tried = 0

    def learn(self, message: str) -> bool:
        """Whether a message states the number of features, for all texts or for one."""
        told = self._TOLD.search(message)
        self._tried += 1
        if told is None or self._tried > 2:
            return False
        self.each = int(told[1]) // (self.sizes.batch if self._tried == 1 else 1)
        return self.each > 0

    def put_into(self, tokens: torch.Tensor, number: int | None) -> torch.Tensor:
        """The tokens, after those of the images."""
        if not self.each or number is None:
            return tokens
        return torch.cat([torch.full((self.sizes.batch, self.each), number), tokens], dim=1)


def _build(model_type: str, testers: Path | None, placeholders: Placeholders) -> tuple[Any, Any]:
    tester = None if testers is None else _usable_tester(model_type, testers)
    if tester is not None:
        return _as_its_tester_does(tester)
    config_class = configuration_auto.CONFIG_MAPPING[model_type]
    kind = model_class(config_class)
    config = shrink(config_class(), placeholders.sizes.scale)
    widen_vocabulary(config, placeholders.sizes.vocabulary)
    model = kind(config)
    model.train()
    return model, Inputs(model, placeholders).all()


def preload() -> None:
    """Import every model, for processes that are forked from this one."""
    for model_type in configuration_auto.CONFIG_MAPPING_NAMES:
        with suppress(Exception):  # needs a library that is not installed
            model_class(configuration_auto.CONFIG_MAPPING[model_type])


def model_class(config_class: type) -> Any:
    """The best-ranked model for a kind of configuration.

    Raises:
        LookupError: there is none.
    """
    names = [f"MODEL_FOR_{head}_MAPPING" for head in HEADS]
    for name in [*names, "MODEL_MAPPING"]:
        found = getattr(modeling_auto, name, {}).get(config_class, None)
        kind = found[0] if isinstance(found, tuple) else found
        # transformers 5 maps models of images and text to the text model inside as well
        if kind is not None and kind.config_class in (None, config_class):
            return kind
    raise LookupError("no auto class has a model for this configuration")


class Inputs:
    """The arguments of a model's `forward`.

    Args:
        model: names its inputs by the parameters of `forward`.
        placeholders: of its images.
    """

    def __init__(self, model: Any, placeholders: Placeholders) -> None:
        self._sizes = placeholders.sizes
        self._model = model
        self._placeholders = placeholders
        self._config = model.config
        self._names = set(inspect.signature(model.forward).parameters)
        self._class = type(model).__name__

    def all(self) -> dict[str, torch.Tensor]:
        """The inputs it requires, with a mask and labels."""
        made: dict[str, torch.Tensor] = {}
        for name, make in self._makers().items():
            if name in self._names:
                made[name] = make()
        if "input_ids" not in made:
            made.pop("attention_mask", None)
        labels = self._labels(made)
        if labels is not None and "labels" in self._names:
            made["labels"] = labels
        if "decoder_input_ids" in self._names and labels is None:
            made["decoder_input_ids"] = self._tokens()
        if "return_loss" in self._names and labels is None:
            return {**made, "return_loss": True}  # type: ignore[dict-item]
        return made

    def _makers(self) -> dict[str, Callable[[], torch.Tensor]]:
        return {
            "input_ids": self._tokens,
            "attention_mask": self._mask,
            "pixel_values": self._pixels,
            "input_features": self._features,
            "input_values": lambda: torch.randn(self._sizes.batch, 1600),
            "bbox": lambda: torch.zeros(
                self._sizes.batch, self._sizes.length, 4, dtype=torch.int64
            ),
        }

    def _tokens(self) -> torch.Tensor:
        tokens = torch.randint(50, self._vocabulary(), (self._sizes.batch, self._sizes.length))
        names = ("image_token_id", "image_token_index")
        numbers = [getattr(self._config, name, None) for name in names]
        number = next((number for number in numbers if number is not None), None)
        return self._placeholders.put_into(tokens, number)

    def _vocabulary(self) -> int:
        text = self._config.get_text_config()
        return int(getattr(text, "vocab_size", VOCABULARY))

    def _mask(self) -> torch.Tensor:
        """Ones, as a tokenizer returns for sentences of equal length."""
        return torch.ones(
            self._sizes.batch, self._sizes.length + self._placeholders.each, dtype=torch.int64
        )

    def _pixels(self) -> torch.Tensor:
        config = self._vision()
        side = getattr(config, "image_size", 32)
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        channels = getattr(config, "num_channels", None) or 3
        frames = getattr(config, "num_frames", None)
        if frames and "video" in self._class.lower():
            return torch.randn(self._sizes.batch, frames, channels, height, width)
        return torch.randn(self._sizes.batch, channels, height, width)

    def _vision(self) -> Any:
        for name in ("vision_config", "encoder", "backbone_config"):
            found = getattr(self._config, name, None)
            if found is not None and hasattr(found, "model_type"):
                return found
        return self._config

    def _features(self) -> torch.Tensor:
        mels = getattr(self._config, "num_mel_bins", None) or 16
        positions = getattr(self._config, "max_source_positions", 32)
        if "Whisper" in self._class:
            return torch.randn(self._sizes.batch, mels, 2 * positions)
        return torch.randn(self._sizes.batch, 64, mels)

    def _labels(self, made: dict[str, torch.Tensor]) -> Any:
        if "labels" not in self._names:
            return None
        name = self._class
        if "ForImageClassification" in name or "ForSequenceClassification" in name:
            return torch.randint(0, self._config.num_labels, (self._sizes.batch,))
        if "ForAudio" in name or "ForVideo" in name:
            return torch.randint(0, self._config.num_labels, (self._sizes.batch,))
        if "ForSemanticSegmentation" in name:
            pixels = made["pixel_values"]
            shape = (self._sizes.batch, *pixels.shape[-2:])
            return torch.randint(0, self._config.num_labels, shape)
        if "ObjectDetection" in name:
            boxes = torch.rand(2, 4) / 4 + 0.3
            return [
                {"class_labels": torch.tensor([0, 1]), "boxes": boxes}
                for _ in range(self._sizes.batch)
            ]
        if "DepthEstimation" in name or "MaskedImageModeling" in name:
            return None
        return self._tokens()


def tiny(model_type: str, sizes: Sizes) -> TrainingStep:
    """A training step of a model type whose number of image tokens is known in advance."""
    return seeded(partial(_build, model_type, None, Placeholders(sizes)))()


# ---- the library's own testers -------------------------------------------------------------------


def _usable_tester(model_type: str, folder: Path) -> Any:
    """The library's test of a model type, unless it needs something that is not installed."""
    try:
        return _tester(model_type, folder)
    except (ImportError, NameError, TypeError):
        return None


def _tester(model_type: str, folder: Path) -> Any:
    """The library's test of a model type, if the folder has one."""
    module_name = configuration_auto.model_type_to_module_name(model_type)
    found = sorted(folder.rglob(f"test_modeling_{module_name}.py"))
    if not found:
        return None
    module = _test_module(found[0], folder)
    tests = [_set_up(each) for each in _test_classes(module)]
    usable = [each for each in tests if getattr(each, "all_model_classes", None)]
    wanted = configuration_auto.CONFIG_MAPPING[model_type]
    of_this_type = [each for each in usable if _has_models_of(each, wanted)]
    return next(iter([*of_this_type, *usable]), None)


def _test_classes(module: Any) -> Iterator[type[unittest.TestCase]]:
    """Those that have models, or a tester that names them."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            has_models = hasattr(value, "all_model_classes") or hasattr(value, "model_tester_class")
            if has_models and value.__module__ == module.__name__:
                yield value


def _set_up(test_class: type[unittest.TestCase]) -> unittest.TestCase:
    _seed_its_random_numbers()
    test = test_class()
    test.setUp()
    return test


def shared_testers(folder: Path) -> None:
    """Import what the tests of most models import, for processes that are forked from this one."""
    _test_module(folder.parent / "test_modeling_common.py", folder)


def _test_module(file: Path, folder: Path) -> Any:
    """A module of the library's tests; they import their siblings relatively."""
    root = folder.resolve().parent.parent
    if str(root) not in sys.path:
        sys.path.append(str(root))
    place = file.resolve().relative_to(root).with_suffix("")
    return importlib.import_module(".".join(place.parts))


def _has_models_of(test: Any, config_class: type) -> bool:
    """Whether it tests this configuration's models, not those of its parts."""
    return any(kind.config_class is config_class for kind in test.all_model_classes)


def _as_its_tester_does(test: Any) -> tuple[Any, Any]:
    config, inputs = test.model_tester.prepare_config_and_inputs_for_common()
    kinds = {kind.__name__: kind for kind in test.all_model_classes}
    kind = kinds.get(_best_ranked(type(config)), test.all_model_classes[-1])
    inputs = test._prepare_for_class(inputs, kind, return_labels=True)
    for name in list(vars(config)):
        if "drop" in name and isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)
    model = kind(config)
    model.train()
    accepted = set(inspect.signature(model.forward).parameters)
    return model, {name: value for name, value in inputs.items() if name in accepted}


def _best_ranked(config_class: type) -> str:
    try:
        name: str = model_class(config_class).__name__
    except LookupError:
        return ""
    return name


def _seed_its_random_numbers() -> None:
    """The testers draw token ids and masks from their own generator."""
    for name, module in list(sys.modules.items()):
        if name.endswith("test_modeling_common"):
            module.global_rng.seed(SEED)
