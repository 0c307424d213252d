"""The report room: reads JSON only, writes one self-contained page, never needs torch."""

from .page import write_report
from .read import read_results
from .summary import summarise
from .terminal import render_table

__all__ = ["read_results", "render_table", "summarise", "write_report"]
