"""The catalogue is as large and as varied as its benchmark says."""

from __future__ import annotations

from benchmarks import environments


def test_the_counts_of_the_catalogue_hold() -> None:
    rows = {row["line"]: row for row in environments.catalogue()}
    assert all(row["holds"] for row in rows.values()), rows
    assert rows["environments"]["measured"] >= 400
    work, own = rows["own environments but drills"]["measured"], rows["own environments"]["measured"]
    assert 120 <= work < own
