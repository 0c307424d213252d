"""The report room: reads JSON only, writes one self-contained page, never needs torch."""

from .page import write_report
from .summary import summarise
from .terminal import render_table

__all__ = ["render_table", "summarise", "write_report"]
