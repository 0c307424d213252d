"""Where the known datasets come from: download addresses, checksums, licence, citation.

No checksum here relies on a single place. Those of MNIST were computed from files whose md5 is the published one. For
the others several public loaders agree (torchaudio for Speech Commands, its own page for the md5 of CIFAR-10), and
each size was reported by someone who had the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class SourceFile:
    """One official file: its name, the addresses to download it from, and its checksums."""

    name: str
    urls: tuple[str, ...]
    sha256: str | None
    size: int
    md5: str | None = None
    unpacked_sha256: str | None = None
    """Checksum of the content of a .gz: identifies the file after it was unpacked, or packed by another program."""
    by_default: bool = True
    """Whether `dynamicgate data get` downloads this file when no file is named."""


@dataclass(frozen=True)
class Source:
    """A known dataset; `folder` is the place of its files in the data folder, `None` if it has no files."""

    name: str
    description: str
    files: tuple[SourceFile, ...]
    licence: str
    citation: str
    homepage: str
    folder: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    """Options the loader needs when only the official files are present."""

    @property
    def size(self) -> int:
        """Bytes that `dynamicgate data get` downloads."""
        return sum(file.size for file in self.files if file.by_default)


_S3 = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CVDF = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_SPEECH = (
    "https://storage.googleapis.com/download.tensorflow.org/data/",
    "https://download.tensorflow.org/data/",
)
_PBMC = "pbmc3k_filtered_gene_bc_matrices.tar.gz"


def _mnist(name: str, size: int, sha256: str, unpacked: str) -> SourceFile:
    return SourceFile(f"{name}.gz", (f"{_S3}{name}.gz", f"{_CVDF}{name}.gz"), sha256, size, unpacked_sha256=unpacked)


def _speech(name: str, size: int, sha256: str, *, by_default: bool) -> SourceFile:
    return SourceFile(name, tuple(address + name for address in _SPEECH), sha256, size, by_default=by_default)


_ALL = (
    Source(
        "digits",
        "1,797 handwritten digits of 8 x 8 pixels; part of scikit-learn",
        (),
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        citation="E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits. UCI, 1998",
        homepage="https://archive.ics.uci.edu/dataset/80",
    ),
    Source(
        "mnist",
        "70,000 handwritten digits of 28 x 28 pixels",
        (
            _mnist(
                "train-images-idx3-ubyte",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            _mnist(
                "train-labels-idx1-ubyte",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            _mnist(
                "t10k-images-idx3-ubyte",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            _mnist(
                "t10k-labels-idx1-ubyte",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        licence="none stated with the files; CC BY-SA 3.0 according to Keras",
        citation="Y. LeCun, C. Cortes, C. J. C. Burges: The MNIST database of handwritten digits. 1998",
        homepage="http://yann.lecun.com/exdb/mnist/",
        folder="MNIST/raw",
    ),
    Source(
        "cifar10",
        "60,000 colour photographs of 32 x 32 pixels in 10 classes",
        (
            SourceFile(
                "cifar-10-binary.tar.gz",
                (
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
                ),
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
                md5="c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        licence="none stated",
        citation="A. Krizhevsky: Learning multiple layers of features from tiny images. 2009",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar10",
    ),
    Source(
        "tiny-imagenet",
        "110,000 labelled colour photographs of 64 x 64 pixels in 200 classes",
        (
            SourceFile(
                "tiny-imagenet-200.zip",
                ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                248_100_043,
                md5="90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        licence="none stated; the images come from ImageNet, for non-commercial research",
        citation="Y. Le, X. Yang: Tiny ImageNet visual recognition challenge. CS 231N, Stanford, 2015",
        homepage="https://cs231n.stanford.edu/",
        folder="tiny-imagenet-200",
    ),
    Source(
        "speech-commands",
        "105,829 clips of one second, 35 spoken words (v0.02; v0.01: 64,727 clips, 30 words)",
        (
            _speech(
                "speech_commands_v0.02.tar.gz",
                2_428_923_189,
                "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
                by_default=True,
            ),
            _speech(
                "speech_commands_v0.01.tar.gz",
                1_489_096_277,
                "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
                by_default=False,
            ),
        ),
        licence="CC BY 4.0",
        citation="P. Warden: Speech Commands: a dataset for limited-vocabulary speech recognition. 2018",
        homepage="https://arxiv.org/abs/1804.03209",
        folder="SpeechCommands",
    ),
    Source(
        "pbmc3k",
        "gene counts of 2,700 blood cells, 32,738 genes; the cell types are in a separate file",
        (
            SourceFile(
                _PBMC,
                (
                    f"https://cf.10xgenomics.com/samples/cell-exp/1.1.0/pbmc3k/{_PBMC}",
                    f"https://cf.10xgenomics.com/samples/cell/pbmc3k/{_PBMC}",
                ),
                "847d6ebd9a1ec9a768f2be7e40ca42cbfe75ebeb6d76a4c24167041699dc28b5",
                7_621_991,
                md5="f76d73bf7a582aaf32b798bcae9574d3",
            ),
        ),
        licence="CC BY 4.0",
        citation="10x Genomics: 3k PBMCs from a healthy donor, Cell Ranger 1.1.0. 2016",
        homepage="https://www.10xgenomics.com/datasets/3-k-pbm-cs-from-a-healthy-donor-1-standard-1-1-0",
        folder="pbmc3k",
        options=(("labels", "leiden"),),
    ),
)

SOURCES: Mapping[str, Source] = MappingProxyType({source.name: source for source in _ALL})


def get_source(name: str) -> Source:
    """The source of a known dataset; an unknown name is a ValueError that lists the known ones."""
    if name not in SOURCES:
        raise ValueError(f"unknown dataset {name!r}: expected one of {', '.join(SOURCES)}")
    return SOURCES[name]
