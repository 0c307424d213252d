"""Digits: 1,797 handwritten digits of 8 x 8 pixels, part of scikit-learn (UCI; Alpaydin and Kaynak, 1998)."""

from __future__ import annotations

from pathlib import Path

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays
from dynamicgate.lab.datasets.splits import TEST_FRACTION, TEST_SEED, VALID_FRACTION, Splits, split_arrays


def load_digits(data_dir: Path, seed: int) -> Splits:
    """1,222 / 216 / 359 rows; x is [n, 64] in [0, 1]. The test rows never change; `seed` draws the validation rows."""
    del data_dir  # every loader has the same signature; this one needs no files
    try:
        from sklearn.datasets import load_digits as sklearn_digits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(
            "the digits dataset is part of scikit-learn, which is not installed: pip install 'dynamicgate[sklearn]'"
        ) from error
    pixels, labels = sklearn_digits(return_X_y=True)
    raw = check_arrays(pixels, labels, classes=10, what="digits")
    everything = Arrays(raw.values / 16, raw.y)
    rest, test = split_arrays(everything, TEST_FRACTION, TEST_SEED, "digits")
    train, valid = split_arrays(rest, VALID_FRACTION, seed, "digits")
    # One mean for all pixels: border pixels are almost always 0, and dividing by their own std would blow them up.
    return Splits(
        "digits", train, valid, test, classes=10, mean=train.values.mean().item(), std=train.values.std().item()
    )
