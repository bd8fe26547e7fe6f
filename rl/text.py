"""Plain text for the terminal: tables and numbers that read the same in a log file and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns as wide as their longest cell, two spaces apart; the head is underlined."""
    lines = [list(head), *[[str(c) for c in row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "-" * max(len(t) for t in text), *text[1:]])


def percent(share: float | None) -> str:
    """A share in percent without decimals, or a dash where there is none."""
    return "-" if share is None else f"{100 * share:.0f}"


def clock(seconds: float) -> str:
    """A duration as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def gigabytes(amount: float) -> str:
    """Bytes in GB (1e9), with as many digits as matter."""
    value = amount / 1e9
    return f"{value:,.0f} GB" if value >= 100 else f"{value:.2f} GB" if value < 10 else f"{value:.1f} GB"
