"""Trains a small neural network, in plain numpy, to read handwritten digits.

Prints the training loss, the accuracy on digits that were not used for training, and the speed, several times an epoch:

    epoch=1 step=100 loss=1.1269 accuracy=0.9417 throughput=44133.8 images/s
"""

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

Layers = list[tuple[np.ndarray, np.ndarray]]

CLASSES = 10
HIDDEN = (512, 256)
BATCH = 64
LEARNING_RATE = 0.03
MOMENTUM = 0.9
STEPS_PER_LINE = 100
TEST_IMAGES = 360


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default="data/digits.csv.gz", help="the digits, as CSV (%(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=60, help="passes over the training images (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the split, the weights and the batches (%(default)s)"
    )
    parser.add_argument(
        "--runs", type=Path, default="runs", help="where the trained model is kept (%(default)s)"
    )
    options = parser.parse_args()

    random = np.random.default_rng(options.seed)
    images, labels = load(options.data)
    order = random.permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    train_images, train_labels = shifted(images[train]), np.tile(labels[train], 9)
    print(f"training on {len(train_images)} images ({len(train)} in 9 positions), testing on {len(test)}")

    layers = new_layers(random, (images[0].size, *HIDDEN, CLASSES))
    momenta = [np.zeros_like(parameter) for layer in layers for parameter in layer]
    steps_per_epoch = len(train_images) // BATCH
    total_steps = options.epochs * steps_per_epoch
    step, losses, started = 0, [], time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        for batch in random.permutation(len(train_images))[: steps_per_epoch * BATCH].reshape(-1, BATCH):
            loss, gradients = backward(layers, train_images[batch], train_labels[batch])
            rate = LEARNING_RATE * (1 - step / total_steps)
            descend(layers, momenta, gradients, rate)
            losses.append(loss)
            step += 1
            if len(losses) == STEPS_PER_LINE:
                throughput = STEPS_PER_LINE * BATCH / (time.perf_counter() - started)
                accuracy = np.mean(predict(layers, images[test]) == labels[test])
                print(
                    f"epoch={epoch} step={step} loss={np.mean(losses):.4f} "
                    f"accuracy={accuracy:.4f} throughput={throughput:.1f} images/s"
                )
                losses, started = [], time.perf_counter()

    wrong = np.flatnonzero(predict(layers, images[test]) != labels[test])
    print(f"finished: {len(wrong)} of {len(test)} unseen digits are read wrongly")
    options.runs.mkdir(parents=True, exist_ok=True)
    np.savez(options.runs / "model.npz", *(parameter for layer in layers for parameter in layer))


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (n, 8, 8), from 0 to 1, and what they show. A row is 64 pixels from 0 to 16, then the digit."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return table[:, :64].reshape(-1, 8, 8) / 16, table[:, 64].astype(np.int64)


def shifted(images: np.ndarray) -> np.ndarray:
    """Return the images, then each moved by a pixel in the eight directions: a digit is the same a little aside."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    return np.concatenate([padded[:, y : y + 8, x : x + 8] for y in range(3) for x in range(3)])


def new_layers(random: np.random.Generator, sizes: tuple[int, ...]) -> Layers:
    """Return weights and biases; the weights' scale keeps the signal's size through ReLU layers (He et al., 2015)."""
    return [
        (
            (random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32),
            np.zeros(outputs, dtype=np.float32),
        )
        for inputs, outputs in itertools.pairwise(sizes)
    ]


def forward(layers: Layers, images: np.ndarray) -> list[np.ndarray]:
    """Return each layer's output; the last is the logits."""
    outputs = [images.reshape(len(images), -1)]
    for number, (weights, biases) in enumerate(layers, start=1):
        signal = outputs[-1] @ weights + biases
        outputs.append(signal if number == len(layers) else np.maximum(signal, 0))
    return outputs


def predict(layers: Layers, images: np.ndarray) -> np.ndarray:
    return forward(layers, images)[-1].argmax(axis=1)


def backward(layers: Layers, images: np.ndarray, labels: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """Return the mean cross-entropy and its gradient for each parameter, in the order of the layers."""
    outputs = forward(layers, images)
    logits = outputs[-1] - outputs[-1].max(axis=1, keepdims=True)
    logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    loss = -logarithms[rows, labels].mean()

    error = np.exp(logarithms)
    error[rows, labels] -= 1
    error /= len(labels)
    gradients = []
    for (weights, _), inputs in zip(reversed(layers), reversed(outputs[:-1]), strict=True):
        gradients[:0] = [inputs.T @ error, error.sum(axis=0)]
        error = (error @ weights.T) * (inputs > 0)
    return loss, gradients


def descend(layers: Layers, momenta: list[np.ndarray], gradients: list[np.ndarray], rate: float) -> None:
    """Take one step downhill, in place."""
    parameters = [parameter for layer in layers for parameter in layer]
    for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
        momentum *= MOMENTUM
        momentum -= rate * gradient
        parameter += momentum


if __name__ == "__main__":
    main()
