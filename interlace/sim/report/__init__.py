"""What a run was like, from its record: figures, tables of them, drawings."""

from interlace.sim.report.figures import ModelReport, Report, report

__all__ = ["ModelReport", "Report", "report"]
