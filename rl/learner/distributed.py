"""Process groups with deadlines, and DeepSpeed on top of them without any just-in-time build."""

from __future__ import annotations

import datetime
import os
import warnings

import torch
import torch.distributed as dist


class Rendezvous:
    """Where the ranks of one learner meet: rank 0 listens on a port that the system chose, so no race for it."""

    def __init__(self, rank: int, ranks: int, timeout_s: float):
        self.rank, self.ranks = rank, ranks
        # A rank has a GPU of its own, or none has: two ranks of one communicator cannot share one.
        self.cuda = torch.cuda.device_count() >= ranks
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self._store: dist.TCPStore | None = None

    def listen(self, host: str = "127.0.0.1") -> tuple[str, int]:
        """Rank 0 only: open the store; returns the address for the others."""
        self._store = dist.TCPStore(host, 0, self.ranks, True, self.timeout, wait_for_workers=False)
        return host, self._store.port

    def join(self, address: tuple[str, int]) -> None:
        """Every rank: connect, build the default group, and hand it to DeepSpeed (once). Raises within the deadline."""
        if dist.is_initialized():
            return
        if self._store is None:
            self._store = dist.TCPStore(address[0], address[1], self.ranks, False, self.timeout)
        # DeepSpeed reads these even when the group exists already; they also keep it from looking for MPI.
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.ranks),
            LOCAL_RANK=str(self.rank if self.cuda else 0),
            MASTER_ADDR=address[0],
            MASTER_PORT=str(address[1]),
        )
        backend = "nccl" if self.cuda else "gloo"
        # Counters and norms are reduced on the host, also beside GPUs.
        backends = "cpu:gloo,cuda:nccl" if self.cuda else "gloo"
        dist.init_process_group(
            backends, store=self._store, rank=self.rank, world_size=self.ranks, timeout=self.timeout
        )
        import deepspeed
        import deepspeed.ops
        from deepspeed.utils import logger

        # DeepSpeed 0.19 calls collectives by names that torch 2.13 deprecates, in every step.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        # Its build takes a minute, and a killed build leaves a lock that hangs every later run (gloo serves as well).
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        logger.setLevel("WARNING")
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, timeout=self.timeout, verbose=False)

    def bound_all_groups(self) -> None:
        """Give every group the deadline: groups that DeepSpeed makes (expert parallel) come with 30 minutes."""
        from torch.distributed import distributed_c10d as c10d

        for group in list(c10d._world.pg_map):
            c10d._set_pg_timeout(self.timeout, group)

    def leave(self) -> None:
        """Destroy the groups."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = None


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """All-reduce (sum) over all ranks, in place; returns the tensor."""
    dist.all_reduce(tensor)
    return tensor


def max_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """All-reduce (max) over all ranks, in place; returns the tensor."""
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor
