"""Columns of text, each as wide as its widest cell."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; columns of numbers are aligned to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    numeric = [_is_numeric(column[1:]) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [head, *rows]
    ]


def _is_numeric(cells: Sequence[str]) -> bool:
    return all(cell[:1].isdigit() for cell in cells if cell) and any(cells)
