"""The nursery: the process in whose namespaces a worker's sandboxes live, and which creates them all.

It runs in its own user, pid and mount namespace as pid 1, so when it ends (the worker died, or closed it) the kernel
kills everything below it, in whatever state of creation. It ends when the control socket closes or when the worker's
pidfd says that the worker is dead. Started by root, it first becomes an unprivileged id: bubblewrap run as host uid 0
leaves /proc/sys writable, which is an escape. Its /tmp is a private memory filesystem that holds every live workspace,
so nothing of a live sandbox is ever on disk and nothing has to be deleted there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import socket
import sys
import traceback
from dataclasses import asdict
from typing import Any

from environments.sandbox import api, linux, seccomp, wire
from environments.sandbox.box import Box
from environments.sandbox.bwrap import BWRAP, read_bwrap
from environments.sandbox.children import Children, readable
from environments.sandbox.layers import Layers
from environments.sandbox.porter import Porter

_BASE = "/tmp"
_ETC = {
    "passwd": "agent:x:1000:1000::/workspace:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
    "group": "agent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n",
}


class Nursery:
    """Serves one worker's requests; see `LocalSandboxes` for the other side."""

    def __init__(self, limits: api.Limits, journal: int, program: bytes, overlay: bool, porter: Porter) -> None:
        self.limits = limits
        self.overlay = overlay
        self.bwrap = f"{_BASE}/{BWRAP}"
        self.store, self.live, self.etc = f"{_BASE}/store", f"{_BASE}/live", f"{_BASE}/etc"
        self.filter_file = f"{_BASE}/filter"
        with open(self.filter_file, "wb") as file:
            file.write(program)
        self.filter = linux.SeccompFilter(program)
        self.children = Children(asyncio.get_running_loop())
        self.porter = porter
        self.children.watch(porter.pid).add_done_callback(lambda _: os._exit(1))
        self._journal = journal
        self.layers = Layers(f"{_BASE}/layers", self.store, self.children)
        self.empty = f"{_BASE}/empty"
        self.passage = f"{_BASE}/probe"  # where an overlay is mounted for the moment until it is detached
        self.watching = 0
        self._boxes: dict[str, Box] = {}
        self._ends: dict[str, str] = {}  # why sandboxes ended that the worker has not closed yet
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def busy(self) -> int:
        """Requests that wait for their answer, and sandboxes that are looked at between requests."""
        return len(self._tasks) + self.watching

    async def serve(self, control: socket.socket, owner: int) -> None:
        """Answer requests until the worker is gone."""
        reader, writer = await asyncio.open_connection(sock=control)
        capabilities = api.Capabilities(
            isolation="namespaces",
            workspace="overlay" if self.overlay else "copy",
            network="none",
            memory="watched",
            disk="hard",
            sessions="shell",
            streaming=True,
            freeze=True,
            pause=True,
            allow_list=True,
        )
        writer.write(wire.pack({"hello": asdict(capabilities)}))
        death = asyncio.create_task(readable(owner))
        death.add_done_callback(lambda _: os._exit(0))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header, blobs = await wire.receive(reader)
                if header["op"] == "cancel":
                    if task := self._tasks.get(header["of"]):
                        task.cancel()
                    continue
                task = asyncio.create_task(self._answer(writer, header, blobs))
                self._tasks[header["id"]] = task
                task.add_done_callback(lambda _, number=header["id"]: self._tasks.pop(number, None))  # type: ignore[misc]
        os._exit(0)

    async def _answer(self, writer: asyncio.StreamWriter, header: dict[str, Any], blobs: list[bytes]) -> None:
        try:
            args = header["args"]
            if header.get("stream"):
                args["tell"] = lambda n, data: writer.write(wire.pack({"id": header["id"], "stream": n}, data))
            fields, blobs = await getattr(self, f"_op_{header['op']}")(blobs, **args)
            frame = wire.pack({"id": header["id"], **fields}, *blobs)
        except Exception as error:
            if not isinstance(error, (api.SandboxError, OSError)):
                traceback.print_exc()
            frame = wire.pack({"id": header["id"], "error": api.error_to_json(error)})
        writer.write(frame)

    async def _op_create(
        self,
        blobs: list[bytes],
        box: str,
        task: str,
        snapshot: str | None,
        limits: dict[str, Any] | None,
        hosts: list[str],
    ) -> Any:
        os.write(self._journal, json.dumps({"create": box, "task": task}).encode() + b"\n")
        new = Box(self, box, api.Limits(**limits) if limits else self.limits, hosts)
        self._boxes[box] = new
        new.starting = asyncio.create_task(new.start(snapshot))
        try:
            await asyncio.shield(new.starting)
        except BaseException:
            await new.destroy()
            raise
        return {}, []

    async def _op_exec(self, blobs: list[bytes], box: str, **args: Any) -> Any:
        fields, out, err = await self._box(box).exec(stdin=blobs[0], **args)
        return fields, [out, err]

    async def _op_read(self, blobs: list[bytes], box: str, path: str) -> Any:
        return {}, [await self._box(box).workspace.read(path)]

    async def _op_write(self, blobs: list[bytes], box: str, path: str, mode: int) -> Any:
        await self._box(box).workspace.write(path, blobs[0], mode)
        return {}, []

    async def _op_session_run(self, blobs: list[bytes], box: str, name: str, command: str, timeout: float) -> Any:
        fields, out, err = await self._box(box).run_session(name, command, timeout)
        return fields, [out, err]

    async def _op_session_close(self, blobs: list[bytes], box: str, name: str) -> Any:
        await self._box(box).close_session(name)
        return {}, []

    async def _op_freeze(self, blobs: list[bytes], box: str) -> Any:
        return {"layer": (await self._box(box).workspace.freeze()).name}, []

    async def _op_pause(self, blobs: list[bytes], box: str) -> Any:
        await self._box(box).pause()
        return {}, []

    async def _op_resume(self, blobs: list[bytes], box: str) -> Any:
        await self._box(box).resume()
        return {}, []

    async def _op_snapshot(self, blobs: list[bytes], box: str) -> Any:
        return {"snapshot": await self._box(box).workspace.snapshot()}, []

    async def _op_close(self, blobs: list[bytes], box: str) -> Any:
        if (found := self._boxes.get(box)) is not None:
            await found.destroy()
        self._ends.pop(box, None)
        return {}, []

    def _box(self, box: str) -> Box:
        if (found := self._boxes.get(box)) is None:
            raise api.SandboxLost(f"sandbox {box} is gone: {self._ends.get(box, 'it was closed')}")
        return found

    def forget(self, box: Box) -> None:
        """A sandbox is gone: drop it, and the layers of which it was the last user."""
        self._boxes.pop(box.id, None)
        self._ends[box.id] = str(box.lost)
        os.write(self._journal, json.dumps({"close": box.id, "why": box.lost}).encode() + b"\n")
        self.layers.release_all(box.id)


# ------------------------------------------------------------------------------------------------------------- set-up


def _become_unprivileged() -> None:
    if os.geteuid() != 0:
        return
    with open("/proc/self/uid_map") as users, open("/proc/self/gid_map") as groups:
        uid, gid = linux.unprivileged_id(users.read()), linux.unprivileged_id(groups.read())
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # cleared by the change of id; /proc/self/uid_map is root's without it


def _enter_namespaces() -> None:
    """Become pid 1 of new user, pid and mount namespaces; the process outside waits and ends with this one."""
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    pid = os.fork()
    if pid:
        linux.close_from(0)
        os.waitpid(pid, 0)
        os._exit(0)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)


def _arrange_files(bwrap: dict[str, bytes]) -> bool:
    """Mount a private /tmp with the store (the current directory), live folders, /etc, bwrap; whether overlays work."""
    linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", "/proc", "proc", flags | linux.MS_NOEXEC)
    linux.mount("nursery", _BASE, "tmpfs", flags, "mode=755,size=16m")
    for name in ("store", "live", "layers", "etc", "probe", "empty"):
        os.mkdir(f"{_BASE}/{name}", 0o755)
    # by the working directory: its path may lead through folders that only root can enter
    linux.mount(".", f"{_BASE}/store", "", linux.MS_BIND | linux.MS_REC)
    os.chdir("/")
    for name, text in _ETC.items():
        with open(f"{_BASE}/etc/{name}", "w") as file:
            file.write(text)
    for name, data in bwrap.items():
        os.makedirs(os.path.dirname(f"{_BASE}/{name}"), 0o755, exist_ok=True)
        with open(f"{_BASE}/{name}", "wb") as binary:
            binary.write(data)
        os.chmod(f"{_BASE}/{name}", 0o755)
    with contextlib.suppress(OSError):  # only speed
        shutil.copyfile("/etc/ld.so.cache", f"{_BASE}/etc/ld.so.cache")
    os.mkdir(f"{_BASE}/etc/alternatives")
    with contextlib.suppress(FileNotFoundError):  # Debian: awk, vi, ... are links into it
        for entry in os.scandir("/etc/alternatives"):
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), f"{_BASE}/etc/alternatives/{entry.name}")
    return _overlay_works(f"{_BASE}/probe")


def _overlay_works(folder: str) -> bool:
    """Try what sandboxes need of an overlay: replace a directory of the lower layer by an empty one, and see it so."""
    linux.mount("probe", folder, "tmpfs", 0, "size=1m")
    try:
        for name in ("lower/d/x", "upper", "work", "merged"):
            os.makedirs(f"{folder}/{name}")
        options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work,userxattr"
        linux.mount("probe", f"{folder}/merged", "overlay", 0, options)
        shutil.rmtree(f"{folder}/merged/d")
        os.mkdir(f"{folder}/merged/d")
        empty = not os.listdir(f"{folder}/merged/d")
        linux.unmount(f"{folder}/merged")
        return empty
    except OSError:
        return False
    finally:
        linux.unmount(folder)


_FIX = (
    "unprivileged user namespaces are needed. Ubuntu >= 23.10: sudo sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0 (or an AppArmor profile for this python and bwrap). Debian, RHEL: "
    "sudo sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000. Docker: --security-opt "
    "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
)


def main() -> None:
    """Entry point of the process; argv[-1] is the JSON that `LocalSandboxes` starts it with.

    All imports are at the top of the modules: once unprivileged, the interpreter's library may be out of reach.
    """
    options = json.loads(sys.argv[-1])
    for name in ("control", "journal", "owner"):  # inherited from the worker, and by nobody else
        os.set_inheritable(options[name], False)
    control = socket.socket(fileno=options["control"])
    try:
        program = seccomp.program()
        os.umask(0)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # sandboxes die before the trainer when memory runs out
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        bwrap = read_bwrap(options["bwrap"])
        os.chdir(options["store"])
        _become_unprivileged()
        _enter_namespaces()
        overlay = _arrange_files(bwrap)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)  # a fork that is on its way into a sandbox cannot be opened from inside
        gc.freeze()  # forked children copy fewer pages
        porter = Porter(program)
    except NotImplementedError as error:
        control.sendall(wire.pack({"fatal": str(error)}))
        sys.exit(1)
    except (OSError, ValueError) as error:
        control.sendall(wire.pack({"fatal": f"cannot set up sandboxes: {error}. {_FIX}"}))
        sys.exit(1)

    async def serve() -> None:
        limits = api.Limits(**options["limits"])
        await Nursery(limits, options["journal"], program, overlay, porter).serve(control, options["owner"])

    asyncio.run(serve())
