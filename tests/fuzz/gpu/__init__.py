"""Random layers through the Triton kernels and random models through plans for a GPU, against float64.

python -m tests.fuzz.gpu --count 2000 --seed 0 --jobs 4 --record    # on a machine with a CUDA GPU
python -m tests.fuzz.gpu --only 17                                  # one case again
python -m tests.fuzz.gpu --sanitized --count 40 --record            # the kernels under compute-sanitizer's memcheck

Where the record has to travel, `--out FILE` writes it there, and `python -m tests.fuzz.record FILE` takes it over. A
copy of the tree without its history says with DYNAMICGATE_COMMIT which commit it is.
"""
