"""Reports: reads the JSON that runs leave behind, writes one self-contained HTML page. Needs no torch."""

from dynamicgate.lab.report.page import write_report
from dynamicgate.lab.report.reading import read_results
from dynamicgate.lab.report.summary import summarise
from dynamicgate.lab.report.terminal_table import render_table

__all__ = ["read_results", "render_table", "summarise", "write_report"]
