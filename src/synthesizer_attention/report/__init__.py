"""Run directories and paper.toml become report.html, report.md and table.csv (no torch)."""
