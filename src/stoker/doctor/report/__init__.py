"""A diagnosis as a page and as Markdown, for someone who never saw the run."""

from stoker.doctor.report.file import check_place, html_of, inline, markdown_of, write

__all__ = ["check_place", "html_of", "inline", "markdown_of", "write"]
