"""Starts a few gloo processes for learner tests, runs the same functions in each, and collects what they return.

Run as a script it is one of those processes: `learner_processes.py MODULE_FILE FUNCTIONS RANK RANKS FOLDER`.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What became of the processes: exit codes (None: had to be killed) and the end of what each printed."""

    folder: Path
    codes: list[int | None]
    logs: list[str]

    def results(self, function: str) -> list[Any]:
        """What `function` returned on every rank; raises RuntimeError with the logs if it did not on all of them."""
        files = [self.folder / f"{function}_{rank}" for rank in range(len(self.codes))]
        if not all(f.exists() for f in files):
            tails = "\n".join(f"--- rank {r}\n{log[-2000:]}" for r, log in enumerate(self.logs))
            raise RuntimeError(f"{function} did not end; exit codes {self.codes}\n{tails}")
        return [pickle.loads(f.read_bytes()) for f in files]


def launch(file: str, functions: str, ranks: int, folder: Path, timeout_s: float = 300) -> Outcome:
    """Run `function(rank, meeting, folder)` for every comma-separated function of `file` in `ranks` processes.

    Once one process has failed, the others have 30 s to follow it; then they are killed.
    """
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("COVERAGE_PROCESS_CONFIG", None)  # the group's actors are traced; here it would only take time
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"log_{r}" for r in range(ranks)]
    processes = []
    for r, log in enumerate(logs):
        command = [sys.executable, __file__, file, functions, str(r), str(ranks), str(folder)]
        with log.open("w") as out:
            processes.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT))
    deadline, failed = time.monotonic() + timeout_s, False
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        if not failed and any(p.poll() not in (None, 0) for p in processes):
            deadline, failed = min(deadline, time.monotonic() + 30), True
        time.sleep(0.05)
    codes = [p.poll() for p in processes]
    for p in processes:
        if p.poll() is None:
            p.kill()
            p.wait()
    return Outcome(folder, codes, [log.read_text() for log in logs])


def meet(rank: int, ranks: int, folder: Path) -> Any:
    """Join the process group through an address file."""
    from rl.learner.distributed import Rendezvous

    meeting, file = Rendezvous(rank, ranks, 60), folder / "address"
    if rank == 0:
        host, port = meeting.listen()
        (folder / "address.tmp").write_text(f"{host} {port}")
        (folder / "address.tmp").rename(file)
    while not file.exists():
        time.sleep(0.02)
    host, port_text = file.read_text().split()
    meeting.join((host, int(port_text)))
    return meeting


def _main() -> None:
    path, functions, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    folder = Path(sys.argv[5])
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    meeting = meet(rank, ranks, folder)
    for function in functions.split(","):
        result = getattr(module, function)(rank, meeting, folder)
        (folder / f"{function}_{rank}").write_bytes(pickle.dumps(result))
    meeting.leave()


if __name__ == "__main__":
    try:
        _main()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # not through atexit: a group that waits for its peers must not hold the exit back
