"""Sandboxes inside a Ray async actor: many at once, and none is left when the actor is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path


def test_an_async_actor_runs_many_and_its_death_ends_all(ray_cluster: None, tmp_path: Path) -> None:
    import ray

    @ray.remote(num_cpus=0)
    class Worker:
        def __init__(self, store: str) -> None:
            from environments.sandbox.local import LocalSandboxes

            self.factory = LocalSandboxes(store)

        async def episode(self, n: int) -> tuple[str, str]:
            async with await self.factory.create(f"t{n}") as sandbox:
                await sandbox.exec(f"echo {n} > f")
                snapshot = await sandbox.snapshot()
            async with await self.factory.create(f"t{n}", snapshot) as fresh:
                return (await fresh.exec("cat f; pwd")).stdout.decode(), snapshot

        async def linger(self) -> int:
            sandbox = await self.factory.create("linger")
            await sandbox.exec("sleep 1000 > /dev/null 2>&1 &", background=True)
            assert self.factory._link is not None
            return self.factory._link._process.pid

    worker = Worker.remote(str(tmp_path))
    said = ray.get([worker.episode.remote(n) for n in range(12)], timeout=120)
    assert [text for text, _ in said] == [f"{n}\n/workspace\n" for n in range(12)]
    assert len({snapshot for _, snapshot in said}) == 12
    nursery = ray.get(worker.linger.remote(), timeout=60)
    assert os.path.exists(f"/proc/{nursery}")
    ray.kill(worker)
    end = time.monotonic() + 20
    while _alive(nursery):
        assert time.monotonic() < end, "the nursery outlived its actor"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
