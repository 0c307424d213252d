"""Random tests that take long: `python -m tests.fuzz.<name> --count N --seed S`. Short runs are part of the tests."""
