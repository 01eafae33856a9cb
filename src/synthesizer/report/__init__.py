"""Run directories and paper.toml become report.html, report.md and table.csv (no torch)."""

from synthesizer.report.page import Section, page
from synthesizer.report.write import summarize_all, write, write_report

__all__ = ["Section", "page", "summarize_all", "write", "write_report"]
