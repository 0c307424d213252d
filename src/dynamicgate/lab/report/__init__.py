"""The report room: reads JSON only, writes one self-contained page, never needs torch."""

from dynamicgate.lab.report.page import write_report
from dynamicgate.lab.report.reading import read_results
from dynamicgate.lab.report.summary import summarise
from dynamicgate.lab.report.terminal import render_table

__all__ = ["read_results", "render_table", "summarise", "write_report"]
