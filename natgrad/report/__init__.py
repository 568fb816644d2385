"""What a study leaves behind: a folder, its figures and one self-contained page."""

from .folder import FolderError, ResultFolder, versions
from .page import Figure, Page, Section, Table
from .style import PALETTE, figure_style, save

__all__ = [
    "PALETTE",
    "Figure",
    "FolderError",
    "Page",
    "ResultFolder",
    "Section",
    "Table",
    "figure_style",
    "save",
    "versions",
]
