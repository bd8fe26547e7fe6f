"""The decode state of many sequences as one object: fork, freeze, export and restore at token boundaries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.config import K3Config
from model.snapshot import Snapshot, fingerprint

Rows = Tensor | Sequence[int]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, on a CPU of which only what is written takes memory: sixteen rows of a million tokens are 7 GB, and most
    engines fill one."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    untouched = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)  # calloc: unlike torch's, not written to
    return torch.from_numpy(untouched).view(dtype).view(shape)


class DecodeState:
    """Rows of state, one sequence each; a row of length 0 is empty.

    recurrent [L_kda, capacity, heads, K, V] (float32 or wider, key axis first); conv [L_kda, capacity, W-1, 3D] (last
    inputs of the short convolutions, oldest first); latent [L_full, capacity, max_len, kv_rank + pe]; index
    [L_full, capacity, max_len, d] or None (no indexer); lengths Long [capacity], always on the CPU.
    Values of latent and index beyond a row's length are undefined and never read.
    Whatever writes calls `own` first: a frozen state refuses, the fork of a frozen one copies what they share.
    """

    def __init__(
        self,
        config: K3Config,
        capacity: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        version: int = 0,
    ) -> None:
        la = config.linear_attn_config
        kda, full = len(la.kda_layers), len(la.full_attn_layers)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.config, self.capacity, self.max_len, self.device = config, capacity, max_len, torch.device(device)
        self.version = version
        """Of the weights that computed the rows; exported with them, and compared by `restore`."""
        self.frozen, self._shared = False, False
        self.lengths = torch.zeros(capacity, dtype=torch.int64)
        self.recurrent = torch.zeros(kda, capacity, la.num_heads, la.head_dim, la.head_dim, dtype=wide, device=device)
        self.conv = torch.zeros(kda, capacity, la.short_conv_kernel_size - 1, 3 * la.width, dtype=dtype, device=device)
        self.latent = _zeros((full, capacity, max_len, config.latent_dim), dtype, self.device)
        self.index: Tensor | None = None
        if config.index_topk is not None:
            self.index = _zeros((full, capacity, max_len, config.index_head_dim), dtype, self.device)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        held = [self.recurrent, self.conv, self.latent, self.lengths] + ([] if self.index is None else [self.index])
        return sum(t.numel() * t.element_size() for t in held)

    # --- whole states -------------------------------------------------------------------------------------------------

    def freeze(self) -> DecodeState:
        """Refuse every later write, for good; costs nothing. Returns the state."""
        self.frozen = True
        return self

    def fork(self) -> DecodeState:
        """The same sequences, which go on independently of these.

        The fork of a frozen state shares its memory until the first write; of another one it is a copy at once.
        """
        out = object.__new__(DecodeState)
        out.__dict__.update(self.__dict__, frozen=False, _shared=True)
        if not self.frozen:
            out.own()
        return out

    def own(self) -> None:
        """Make the memory this state's own, for a write. Raises RuntimeError if the state is frozen."""
        if self.frozen:
            raise RuntimeError("the decode state is frozen: write to a fork() of it")
        if self._shared:
            self.lengths, self.recurrent, self.conv = self.lengths.clone(), self.recurrent.clone(), self.conv.clone()
            self.latent = self.latent.clone()
            self.index = None if self.index is None else self.index.clone()
            self._shared = False

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _rows(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """(CPU, device) Long indices; raises IndexError for a row outside 0..capacity-1: nothing wraps round."""
        host = torch.as_tensor(rows, dtype=torch.int64, device="cpu")
        if host.numel() and not 0 <= int(host.min()) <= int(host.max()) < self.capacity:
            raise IndexError(f"rows {host.tolist()} outside 0..{self.capacity - 1}")
        return host, host.to(self.device)

    def copy_rows(self, dst_rows: Rows, src_state: DecodeState, src_rows: Rows) -> None:
        """Copy whole sequences from a state (this one included, for compaction) into rows of this one.

        A source row may appear many times (forking a prompt). Raises ValueError if a source is longer than max_len, or
        of another model or version.
        """
        self.own()
        if src_state.config is not self.config and fingerprint(src_state.config) != fingerprint(self.config):
            raise ValueError("rows of another model's decode state: the configs differ")
        if src_state.version != self.version:
            raise ValueError(f"rows computed with weights of version {src_state.version}, not {self.version}")
        dst, dst_dev = self._rows(dst_rows)
        src, src_dev = src_state._rows(src_rows)
        lengths = src_state.lengths[src]
        longest = int(lengths.max()) if len(src) else 0
        if longest > self.max_len:
            raise ValueError(f"a sequence of {longest} tokens does not fit max_len {self.max_len}")
        for mine, theirs in ((self.recurrent, src_state.recurrent), (self.conv, src_state.conv)):
            mine[:, dst_dev] = theirs[:, src_dev].to(mine)
        grown = [(self.latent, src_state.latent)]
        if self.index is not None and src_state.index is not None:
            grown.append((self.index, src_state.index))
        for mine, theirs in grown:
            mine[:, dst_dev, :longest] = theirs[:, src_dev, :longest].to(mine)
        self.lengths[dst] = lengths

    def clear(self, rows: Rows) -> None:
        """Make rows empty: position 0, zero recurrent and convolution state."""
        self.own()
        host, dev = self._rows(rows)
        self.lengths[host] = 0
        self.recurrent[:, dev] = 0
        self.conv[:, dev] = 0

    def export(self, row: int) -> Snapshot:
        """A copy of one sequence's state on the CPU, cut at its length; `restore` brings it back bit for bit."""
        self._rows([row])
        n = int(self.lengths[row])
        tensors = {"recurrent": self.recurrent[:, row], "conv": self.conv[:, row], "latent": self.latent[:, row, :n]}
        if self.index is not None:
            tensors["index"] = self.index[:, row, :n]
        tensors = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
        return Snapshot(tensors, n, fingerprint(self.config), self.version)

    def restore(self, row: int, saved: Snapshot) -> None:
        """Write an exported sequence into a row.

        Raises ValueError naming what differs: model, version of the weights, layout of the recurrent state, dtype,
        shape, or a length beyond max_len.
        """
        self.own()
        self._rows([row])
        mine = {"recurrent": self.recurrent[:, row], "conv": self.conv[:, row]}
        mine["latent"] = self.latent[:, row, : saved.length]
        if self.index is not None:
            mine["index"] = self.index[:, row, : saved.length]
        if not 0 <= saved.length <= self.max_len:
            raise ValueError(f"exported state of {saved.length} tokens does not fit max_len {self.max_len}")
        saved.check(mine, fingerprint(self.config), self.version)
        for name, tensor in mine.items():
            tensor.copy_(saved.tensors[name])
        self.lengths[row] = saved.length
