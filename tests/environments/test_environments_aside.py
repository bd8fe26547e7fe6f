"""An environment's code runs beside its caller: blocking, ending and interrupting it stay its own affair."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from environments.aside import BlockedError, aside
from environments.sandbox.api import Sandbox


async def spin(place: Sandbox | None) -> None:
    while True:
        pass


async def answer(place: Sandbox | None) -> int:
    await asyncio.sleep(0.01)
    return 42


def test_code_that_spins_is_named_and_interrupted_and_the_next_call_has_a_thread() -> None:
    async def go() -> tuple[list[Any], int]:
        both = [aside("test/spins", code, None, 0.2) for code in (spin, answer)]
        return await asyncio.gather(*both, return_exceptions=True), await aside("test/spins", answer, None, 0.2)

    before = time.monotonic()
    failed, after = asyncio.run(go())
    assert all(isinstance(e, BlockedError) and "test/spins: its code did not yield" in str(e) for e in failed)
    assert after == 42 and time.monotonic() - before < 5
    deadline = time.monotonic() + 5
    while sum(t.name == "environment test/spins" for t in threading.enumerate()) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(t.name == "environment test/spins" for t in threading.enumerate()) == 1, "the old one still spins"


def test_an_import_past_the_deadline_goes_on_and_the_module_is_there_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slowly_imported.py").write_text(
        "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end:\n    pass\nvalue = 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def needs_it(place: Sandbox | None) -> int:
        import slowly_imported  # type: ignore[import-not-found]

        return int(slowly_imported.value)

    async def go() -> list[int]:
        names = ("test/first", "test/second", "test/first")
        return await asyncio.gather(*(aside(name, needs_it, None, 0.2) for name in names))

    assert asyncio.run(go()) == [7, 7, 7]


def test_an_import_without_end_is_blocked_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_imported.py").write_text("while True:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("environments.aside._IMPORT_S", 1.0)

    async def needs_it(place: Sandbox | None) -> None:
        import never_imported  # type: ignore[import-not-found]  # noqa: F401

    with pytest.raises(BlockedError, match="test/never"):
        asyncio.run(aside("test/never", needs_it, None, 0.2))


def test_many_short_calls_in_a_row_are_not_called_blocked() -> None:
    async def busy(place: Sandbox | None) -> int:
        time.sleep(0.05)
        return 1

    async def go() -> list[int]:
        return await asyncio.gather(*(aside("test/busy", busy, None, 0.1) for _ in range(40)))

    assert asyncio.run(go()) == [1] * 40


def test_code_that_yields_is_ended_at_its_deadline_and_keeps_its_thread() -> None:
    async def slow(place: Sandbox | None) -> int:
        await asyncio.sleep(10)
        return 1

    async def go() -> list[Any]:
        calls = (aside("test/slow", code, None, 0.1) for code in (slow, answer))
        return await asyncio.gather(*calls, return_exceptions=True)

    late, fine = asyncio.run(go())
    assert isinstance(late, TimeoutError) and fine == 42


def test_an_end_of_the_program_is_an_error_of_the_environment() -> None:
    async def leave(place: Sandbox | None) -> None:
        sys.exit(3)

    async def go() -> int:
        with pytest.raises(RuntimeError, match=r"raised SystemExit\(3\)"):
            await aside("test/leaves", leave, None, 1.0)
        return await aside("test/leaves", answer, None, 1.0)

    assert asyncio.run(go()) == 42


def test_a_call_that_is_given_up_is_cancelled_in_its_thread() -> None:
    ended: list[str] = []

    async def long(place: Sandbox | None) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(threading.current_thread().name)

    async def go() -> None:
        task = asyncio.ensure_future(aside("test/long", long, None, 20.0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if not ended:
                await asyncio.sleep(0.01)

    asyncio.run(go())
    assert ended == ["environment test/long"]
