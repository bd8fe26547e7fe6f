"""Starts a few gloo processes for learner tests, gives each the same function to run, and collects what they return.

Run as a script it is one of those processes: `learner_processes.py MODULE_FILE FUNCTION RANK RANKS FOLDER`.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def launch(file: str, function: str, ranks: int, folder: Path, timeout_s: float = 120) -> list[dict[str, Any]]:
    """Run `function(rank, meeting, folder)` of `file` in `ranks` processes; returns what each returned.

    Raises RuntimeError with every rank's error if one fails, or with what they printed if they are late; all are ended.
    """
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    folder.mkdir(parents=True, exist_ok=True)
    logs = [open(folder / f"log_{r}", "w") for r in range(ranks)]  # noqa: SIM115 (closed below)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, file, function, str(r), str(ranks), str(folder)],
            cwd=ROOT,
            env=env,
            stdout=logs[r],
            stderr=subprocess.STDOUT,
        )
        for r in range(ranks)
    ]
    deadline = time.monotonic() + timeout_s
    try:
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            if any(p.poll() not in (None, 0) for p in processes):
                deadline = min(deadline, time.monotonic() + 30)  # the others must follow a failed one within 30 s
            time.sleep(0.05)
        codes = [p.poll() for p in processes]
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.wait()
        for log in logs:
            log.close()
    if any(c != 0 for c in codes):
        tails = "\n".join(f"--- rank {r}\n{(folder / f'log_{r}').read_text()[-1500:]}" for r in range(ranks))
        raise RuntimeError(f"exit codes {codes} (None: late)\n{tails}")
    return [pickle.loads((folder / f"result_{r}").read_bytes()) for r in range(ranks)]


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
    path, function, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    folder = Path(sys.argv[5])
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    meeting = meet(rank, ranks, folder)
    result = getattr(module, function)(rank, meeting, folder)
    (folder / f"result_{rank}").write_bytes(pickle.dumps(result))
    meeting.leave()


if __name__ == "__main__":
    try:
        _main()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # not through atexit: a group that waits for its peers must not hold the exit back
