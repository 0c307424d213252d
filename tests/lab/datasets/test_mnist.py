"""MNIST from its four official files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.mnist import FILES, find_files, read_pair
from dynamicgate.lab.datasets.splits import Splits

from .small_arrays import rows_of, write_idx

TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="module")
def mnist(real_data: Path) -> Splits:
    return load_dataset("mnist", data_dir=real_data)


def test_real_mnist_has_the_published_class_counts(mnist: Splits) -> None:
    info = mnist.info()
    assert {key: info[key] for key in ("name", "train", "valid", "test", "features", "classes", "majority")} == {
        "name": "mnist",
        "train": 55_000,
        "valid": 5_000,
        "test": 10_000,
        "features": 784,
        "classes": 10,
        "majority": 0.1135,
    }
    counts = info["class_counts"]
    assert [a + b for a, b in zip(counts["train"], counts["valid"], strict=True)] == TRAIN_COUNTS
    assert counts["test"] == TEST_COUNTS
    assert all(abs(found - whole / 12) < 1 for found, whole in zip(counts["valid"], TRAIN_COUNTS, strict=True))


def test_real_mnist_keeps_exact_zeros_and_is_scaled_to_zero_to_one(mnist: Splits) -> None:
    assert mnist.train.x.dtype == torch.float32
    assert (mnist.train.x.min().item(), mnist.train.x.max().item()) == (0, 1)
    assert 0.80 < (mnist.test.x == 0).float().mean() < 0.82


def test_the_published_mean_and_std_are_those_of_the_official_training_images(mnist: Splits) -> None:
    pixels = torch.cat([mnist.train.x, mnist.valid.x])
    assert mnist.mean == pytest.approx(pixels.mean(dtype=torch.float64).item(), abs=5e-5)
    assert mnist.std == pytest.approx(pixels.numpy().std(dtype=np.float64), abs=5e-5)


def test_no_real_image_is_in_two_parts(mnist: Splits) -> None:
    train, valid, test = rows_of(mnist.train.x), rows_of(mnist.valid.x), rows_of(mnist.test.x)
    assert not train & valid
    assert not (train | valid) & test


def test_another_seed_draws_other_validation_images_and_keeps_the_test_part(mnist: Splits, real_data: Path) -> None:
    other = load_dataset("mnist", data_dir=real_data, seed=1)
    assert other.test.x.equal(mnist.test.x)
    assert not other.valid.x.equal(mnist.valid.x)


def images(rows: int, size: int = 28) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (rows, size, size), "uint8")


def labels(rows: int) -> np.ndarray:
    return (np.arange(rows) % 10).astype("uint8")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_pair_of_files_becomes_flat_images_divided_by_255(tmp_path: Path, suffix: str) -> None:
    x = images(20)
    pair = read_pair(write_idx(tmp_path / f"x{suffix}", x), write_idx(tmp_path / f"y{suffix}", labels(20)), 20)
    assert pair.x.shape == (20, 784)
    assert np.array_equal(pair.x.numpy(), x.reshape(20, 784).astype(np.float32) / np.float32(255))
    assert pair.y.tolist() == labels(20).tolist()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (images(20), labels(19), r"x has 20 images but .*y has 19 labels; expected 20"),
        (images(19), labels(19), r"x and .*y have 19 items, expected 20"),
        (images(20, 27), labels(20), r"x: expected images of 28 x 28 pixels, found 27 x 27"),
        (images(20).astype("int32"), labels(20), r"x: expected images of type uint8, found int32"),
        (images(20), labels(20) + np.uint8(3), r"x with y: labels must be 0\.\.9, found 10 at row 7"),
        (labels(20), labels(20), r"x has the wrong magic number: expected an idx array of 3 dimensions, found 1"),
        (images(20), images(20), r"y has the wrong magic number: expected an idx array of 1 dimensions, found 3"),
    ],
)
def test_files_that_do_not_match_are_refused(tmp_path: Path, x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_pair(write_idx(tmp_path / "x", x), write_idx(tmp_path / "y", y), 20)


@pytest.mark.parametrize("folder", ["MNIST/raw", "MNIST", "mnist", "."])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_are_found_in_each_of_the_usual_folders(tmp_path: Path, folder: str, suffix: str) -> None:
    written = [write_idx(tmp_path / folder / f"{name}{suffix}", labels(3)) for name in FILES]
    assert [path.resolve() for path in find_files(tmp_path)] == [path.resolve() for path in written]


def test_missing_files_are_named_with_the_folders_searched_and_what_to_do(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST" / FILES[0], images(3))
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset("mnist", data_dir=tmp_path)
    message = str(caught.value)
    for name in FILES:
        assert name in message
    assert f"{tmp_path / 'MNIST' / 'raw'} (none of them)" in message
    assert f"{tmp_path / 'MNIST'} (lacks {', '.join(FILES[1:])})" in message
    assert "--data-dir" in message
    assert "`dynamicgate data get mnist`" in message
    assert "DYNAMICGATE_DATA" in message


def test_a_folder_with_too_few_images_is_refused(tmp_path: Path) -> None:
    for name, array in zip(FILES, (images(20), labels(20), images(10), labels(10)), strict=True):
        write_idx(tmp_path / f"{name}.gz", array)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz and .* have 20 items, expected 60000"):
        load_dataset("mnist", data_dir=tmp_path)
