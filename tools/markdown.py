"""Tables of pages in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [
        f"| {' | '.join(header)} |",
        f"|{'|'.join([':--', *['--:'] * (len(header) - 1)])}|",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
