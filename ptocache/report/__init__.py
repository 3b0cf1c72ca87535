"""A report on a cache: one page of HTML, complete in itself, with what `ptocache stats` tells, drawn."""

from ptocache.report.page import render

__all__ = ["render"]
