"""See what the sphere looks like: figures, tables, and one HTML page per run or comparison."""

from . import figures
from .page import write_page
from .run_data import RunData, read_run
from .style import save
from .tables import markdown_table, read_result
from .watch import watch

__all__ = [
    "RunData",
    "figures",
    "markdown_table",
    "read_result",
    "read_run",
    "save",
    "watch",
    "write_page",
]
