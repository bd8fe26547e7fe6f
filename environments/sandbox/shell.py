"""A shell session, as its nursery sees it: one bash inside the sandbox, and how it is asked, interrupted and replaced.

Commands go through its standard input, exit codes come back over file descriptor 4, which the commands themselves do
not get. All of it is in the agent's hands: a lie here fools nobody but the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
from typing import TYPE_CHECKING, Any

from environments.sandbox.api import LimitExceeded
from environments.sandbox.children import Capture

if TYPE_CHECKING:
    from environments.sandbox.box import Box

_ARGV = ["bash", "--norc", "--noprofile"]
# What bash itself changes from moment to moment, or will not be told: equal sessions must have equal states.
_VOLATILE = (
    "_|__jointrl_*|JOINTRL_EXEC|IFS|BASH|BASH_*|BASHPID|BASHOPTS|SHELLOPTS|EPOCH*|SECONDS|RANDOM|SRANDOM|LINENO|PPID|UID|EUID|GROUPS|"
    "PIPESTATUS|DIRSTACK|HISTCMD|COMP_*|FUNCNAME"
)
# Options come last, so that `set -u` disturbs nothing.
DUMP = (
    "( printf 'cd -- %q\n' \"$PWD\"; declare -p IFS; IFS=$'\n'; for __jointrl_n in $(compgen -v); do "
    f'case $__jointrl_n in {_VOLATILE}) continue;; esac; declare -p "$__jointrl_n" || :; done; '
    "declare -f; alias -p; umask -p; shopt -p; shopt -op; : ) 2>/dev/null"
)
_STATE_BYTES = 1 << 18
_ENDING_S = 0.1  # from the end of a shell's control to its own end: `exec true` has a code of its own
_ANSWER_S = 2.0  # of a shell that is idle or was interrupted; it is replaced after that


class Shell:
    """One session. Its methods run under the box's lock, so never two at a time."""

    def __init__(self, box: Box, saved: str = "") -> None:
        self._box = box
        self.saved = saved
        """What a new shell starts from."""
        self.pid = -1
        self._exited: asyncio.Future[int] | None = None
        self._input = self._control = -1
        self._captures: list[Capture] = []
        self._said = bytearray()

    @property
    def alive(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._exited is not None and not self._exited.done()

    async def run(self, command: str, timeout: float) -> tuple[dict[str, Any], bytes, bytes]:
        """Run one command; (fields of ExecResult, stdout, stderr)."""
        loop = asyncio.get_running_loop()
        start, code, timed_out, out_of_memory = loop.time(), None, False, False
        if _impossible(command):
            command = "echo 'not a possible command' >&2; (exit 126)"
        await self._begin()
        before = self._box.processes()
        ask = asyncio.create_task(self._ask(f"{{ eval {shlex.quote(command)}\n}} </dev/null 4>&-\n"))
        try:
            try:
                async with asyncio.timeout(timeout):
                    out_of_memory = not await self._box.ends_within_memory(self.pid, ask)
                if not out_of_memory:
                    code = ask.result()
            except TimeoutError:
                timed_out = True
                await self._interrupt(ask, before)
        finally:
            restarted = not ask.done() or ask.result() is None
            ask.cancel()
            if out_of_memory:
                await self._box.kill_everything()
            if restarted:
                if ask.done() and self._exited is not None:  # what took the shell's place may be about to end by itself
                    await asyncio.wait({self._exited}, timeout=_ENDING_S)
                await self._kill()
                code = self._status()
            (out, out_dropped), (err, err_dropped) = (capture.take() for capture in self._captures)
            if restarted:
                self._drop()
        fields = {
            "code": None if timed_out or out_of_memory else code,
            "signal": signal.SIGKILL.value if timed_out or out_of_memory or code is None else None,
            "timed_out": timed_out,
            "out_of_memory": out_of_memory,
            "dropped": [out_dropped, err_dropped],
            "leftovers": timed_out or out_of_memory,
            "seconds": loop.time() - start,
            "session_restarted": restarted,
        }
        return fields, out, err

    async def state(self) -> str:
        """What a new shell needs to go on from here; of a shell that does not answer, what it was at the last time."""
        if self.alive:
            for capture in self._captures:
                capture.take()
            try:
                async with asyncio.timeout(_ANSWER_S):
                    done = await self._ask(f"{DUMP}\n", keep_output=True)
                text, dropped = self._captures[0].take()
                if dropped or len(text) > _STATE_BYTES:
                    raise LimitExceeded("session", f"a session's variables are more than {_STATE_BYTES} bytes")
                if done is not None:
                    self.saved = text.decode("utf-8", "replace")
            except TimeoutError:
                await self.stop()
        return self.saved

    async def stop(self) -> None:
        """End the process; the session goes on from its saved state with the next command."""
        await self._kill()
        self._drop()

    # ------------------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self.alive:
            return
        self._drop()
        self._captures, self._input, self._control, self.pid, self._exited = self._box.launch_shell(_ARGV)
        os.set_blocking(self._input, False)
        os.set_blocking(self._control, False)
        if self.saved:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    await self._ask(f"eval {shlex.quote(self.saved)} </dev/null >/dev/null 2>&1\n")
            for capture in self._captures:
                capture.take()

    async def _ask(self, text: str, keep_output: bool = False) -> int | None:
        """Let bash read `text`; the exit code of it, or None if bash ended."""
        nonce = secrets.token_hex(8)
        data = memoryview(f"{text}printf '%s %d\\n' {nonce} $? >&4\n".encode("utf-8", "surrogateescape"))
        try:
            while data:
                try:
                    data = data[os.write(self._input, data) :]
                except BlockingIOError:
                    await self._ready(self._input, write=True)
        except BrokenPipeError:
            return None
        while True:
            *lines, rest = bytes(self._said).split(b"\n")
            self._said[:] = rest
            for line in lines:
                mark, _, code = line.partition(b" ")
                if mark == nonce.encode() and code.isdigit():
                    return int(code) & 0xFF
            try:
                chunk = os.read(self._control, 4096)
            except BlockingIOError:
                await self._ready(self._control)
                continue
            if not chunk or len(self._said) > 1 << 16:
                return None
            self._said += chunk

    @staticmethod
    async def _ready(fd: int, write: bool = False) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
        add(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            remove(fd)

    async def _interrupt(self, ask: asyncio.Task[int | None], before: set[int]) -> None:
        """Interrupt what the command started, then kill it; returns when bash is back, or will not be."""
        for pid in self._box.new_since(before, self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        await asyncio.wait([ask], timeout=_ANSWER_S / 4)
        await self._box.kill_new(before, shell=self.pid)
        await asyncio.wait([ask], timeout=_ANSWER_S / 4)

    def _status(self) -> int | None:
        """Exit code of a bash that ended by itself."""
        assert self._exited is not None
        return self._exited.result() if self._exited.result() >= 0 else None

    async def _kill(self) -> None:
        if self._exited is not None:
            if self.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            await asyncio.shield(self._exited)

    def _drop(self) -> None:
        if self._exited is None:
            return
        for capture in self._captures:
            capture.close()
        for fd in (self._input, self._control):
            os.close(fd)
        self._captures, self._said, self._exited, self.pid = [], bytearray(), None, -1


def _impossible(command: str) -> bool:
    """Whether no bytes stand for it: a NUL, or half of a surrogate pair."""
    try:
        return b"\0" in os.fsencode(command)
    except UnicodeEncodeError:
        return True
