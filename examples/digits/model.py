"""The task: handwritten digits, who sees which of them, and a small network in plain numpy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CLASSES = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (0, 2, 4, 6, 8), (1, 3, 5, 7, 9))
"""Which digits each peer sees: five of the ten; each digit is seen by two peers."""

TEST_IMAGES = 360
LAYERS = (64, 256, 128, 10)
BATCH = 32
LOCAL_STEPS = 30
"""Steps between two all-reduces."""
LOCAL_RATE = 0.05
LOCAL_MOMENTUM = 0.5
OUTER_RATE = 0.7
OUTER_MOMENTUM = 0.8


@dataclass(frozen=True)
class Digits:
    """Images, 64 values from 0 to 1 each, and which digit each is."""

    train_images: Floats
    train_labels: Ints
    test_images: Floats
    test_labels: Ints

    @classmethod
    def from_sklearn(cls) -> Digits:
        """The 1,797 images of 8 by 8 pixels that scikit-learn carries, in a fixed split."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        images = (images[order] / 16).astype(np.float32)
        labels = labels[order].astype(np.int64)
        test, train = slice(0, TEST_IMAGES), slice(TEST_IMAGES, None)
        return cls(images[train], labels[train], images[test], labels[test])

    def save(self, path: Path) -> None:
        """Writes them for `load`: the workers need no scikit-learn."""
        np.savez(path, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> Digits:
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in arrays.files})

    def of_peer(self, peer: int) -> tuple[Floats, Ints]:
        """Training images of one peer: its five digits, and of each digit the half that the other
        peer with this digit does not have."""
        mine = np.zeros(len(self.train_labels), bool)
        for digit in CLASSES[peer]:
            owners = [other for other, classes in enumerate(CLASSES) if digit in classes]
            indices = np.flatnonzero(self.train_labels == digit)
            mine[indices[owners.index(peer) :: len(owners)]] = True
        return self.train_images[mine], self.train_labels[mine]


class Network:
    """Three dense layers with ReLU between them. `parameters` is one flat array."""

    def __init__(self, seed: int = 1) -> None:
        shapes: list[tuple[int, ...]] = [
            shape
            for inputs, outputs in itertools.pairwise(LAYERS)
            for shape in ((inputs, outputs), (outputs,))
        ]
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.parameters: Floats = np.zeros(sum(sizes), np.float32)
        self._gradient = np.zeros_like(self.parameters)
        self._velocity = np.zeros_like(self.parameters)
        self._weights = _views(self.parameters, shapes, sizes)
        self._gradients = _views(self._gradient, shapes, sizes)
        random = np.random.default_rng(seed)
        for weight in self._weights[::2]:
            scale = np.sqrt(2 / weight.shape[0])
            weight[:] = random.standard_normal(weight.shape) * scale

    def train(self, images: Floats, labels: Ints, steps: int, random: np.random.Generator) -> float:
        """`steps` steps of gradient descent with momentum from rest. Returns the mean loss."""
        self._velocity[:] = 0
        total = 0.0
        for _ in range(steps):
            batch = random.integers(0, len(labels), BATCH)
            total += self._step(images[batch], labels[batch])
        return total / steps

    def accuracy(self, images: Floats, labels: Ints) -> float:
        """Share of the images that are recognised, 0 to 1."""
        return float((self._forward(images)[-1].argmax(1) == labels).mean())

    def _step(self, images: Floats, labels: Ints) -> float:
        layers = self._forward(images)
        rows = np.arange(len(labels))
        scores = layers[-1] - layers[-1].max(1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(1, keepdims=True)
        loss = float(-np.log(chances[rows, labels] + 1e-9).mean())
        error = chances
        error[rows, labels] -= 1
        error /= len(labels)
        for layer in reversed(range(len(self._weights) // 2)):
            np.matmul(layers[layer].T, error, out=self._gradients[2 * layer])
            error.sum(0, out=self._gradients[2 * layer + 1])
            if layer:
                error = (error @ self._weights[2 * layer].T) * (layers[layer] > 0)
        self._velocity *= LOCAL_MOMENTUM
        self._velocity += self._gradient
        self.parameters -= LOCAL_RATE * self._velocity
        return loss

    def _forward(self, images: Floats) -> list[Any]:
        layers = [images]
        for layer in range(0, len(self._weights), 2):
            values = layers[-1] @ self._weights[layer] + self._weights[layer + 1]
            if layer + 2 < len(self._weights):
                np.maximum(values, 0, out=values)
            layers.append(values)
        return layers


class OuterStep:
    """DiLoCo's outer optimiser: Nesterov's momentum over averaged pseudo-gradients.

    `anchor` and `momentum` are the same at every member, bit for bit: each computes them from the
    same averages in the same order.
    """

    def __init__(self, parameters: Floats) -> None:
        self.anchor = parameters.copy()
        self.momentum = np.zeros_like(parameters)

    def apply(self, pseudo_gradient: Floats) -> None:
        """One step along the averaged pseudo-gradient."""
        self.momentum *= np.float32(OUTER_MOMENTUM)
        self.momentum += pseudo_gradient
        look_ahead = pseudo_gradient + np.float32(OUTER_MOMENTUM) * self.momentum
        self.anchor -= np.float32(OUTER_RATE) * look_ahead


def _views(flat: Floats, shapes: list[tuple[int, ...]], sizes: list[int]) -> list[Floats]:
    starts = np.cumsum([0, *sizes])
    return [
        flat[start : start + size].reshape(shape)
        for start, size, shape in zip(starts, sizes, shapes, strict=False)
    ]
