"""Reports: a run, or a comparison of many, as one HTML file and as figures for a paper."""

from fedimmune.report.page import write_figures, write_report

__all__ = ["write_figures", "write_report"]
