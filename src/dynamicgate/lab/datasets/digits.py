"""Digits: 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn (UCI; Alpaydin and Kaynak, 1998)."""

from __future__ import annotations

from pathlib import Path

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays
from dynamicgate.lab.datasets.splits import TEST_SEED, TEST_SHARE, VALID_SHARE, Splits, split_arrays


def load_digits(data_dir: Path, seed: int) -> Splits:
    """1,222 / 216 / 359 rows, x is [n, 64] in [0, 1]; the test rows never change, validation is drawn by `seed`."""
    del data_dir  # every loader has the same signature, and this one needs no files
    try:
        from sklearn.datasets import load_digits as sklearn_digits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(
            "the digits data come with scikit-learn, which is not installed: pip install 'dynamicgate[sklearn]'"
        ) from error
    pixels, labels = sklearn_digits(return_X_y=True)
    raw = check_arrays(pixels, labels, classes=10, what="digits")
    everything = Arrays(raw.values / 16, raw.y)
    rest, test = split_arrays(everything, TEST_SHARE, TEST_SEED, "digits")
    train, valid = split_arrays(rest, VALID_SHARE, seed, "digits")
    # One mean for all pixels: border pixels are almost always 0, and dividing by their own spread would magnify them.
    return Splits(
        "digits", train, valid, test, classes=10, mean=train.values.mean().item(), std=train.values.std().item()
    )
