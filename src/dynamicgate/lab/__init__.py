"""Experiments: datasets, compared methods, the runner, reports and the command line. The core never imports it."""
