"""`mcp:/path/tools.json`: the tools of an MCP server, for tasks of a local file.

tools.json: {"command": ["python", "server.py"], "rows": "tasks.jsonl", ...}; what else it holds are the arguments of
`dataset.py` (prompt, answer, same, grader, domain). MCP gives tools and no reward: that comes from the rows. Every
episode
has a server process of its own over stdio (newline-delimited JSON-RPC, protocol 2025-06-18), killed with everything it
started; a lost one is started again and its calls are repeated. No MCP package is needed on our side.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.adapters.dataset import Rows
from environments.adapters.host import LOST, ForeignError, Lines, PeerLost, clean_environment
from environments.adapters.replay import Sessions
from environments.base import Step
from environments.task import Limits, Message, Task, Tool

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

_START_S = 60.0
_CALL_S = 30.0
_MAX_CHARS = 8000  # of a tool result
_PROTOCOL = "2025-06-18"


class McpTools(Rows):
    """One file of tasks with one server's tools; raises ValueError for what tools.json lacks."""

    id = "mcp"
    tags = ("third_party", "multi_turn", "tools")
    limits = Limits(turns=16, tokens=16_384, seconds=300.0)

    def __init__(self, path: str) -> None:
        config = json.loads(Path(path).read_text())
        folder = Path(path).resolve().parent
        try:
            self.command = tuple(config.pop("command"))
            rows = str(folder / config.pop("rows"))
        except KeyError as error:
            raise ValueError(
                f"{path} must name {error}: command is the server's argument list, rows a .jsonl file"
            ) from None
        super().__init__(rows, **config)
        self.folder = str(folder)
        vars(self).update(id=f"mcp:{path}")

    def tools(self, task: Task) -> list[Tool]:
        """What the server lists."""
        return [*_tools(self.command, self.folder)]

    def _calls(self, key: str, calls: list[dict[str, Any]]) -> list[str]:
        return _sessions().answers((self.id, key), calls, lambda: Server(self.command, self.folder))

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Answer the calls of the last message; a message without a call is the answer."""
        calls = [c for m in conversation[len(task.prompt) :] for c in m.get("tool_calls") or []]
        last = conversation[-1].get("tool_calls") or []
        if not last:
            return Step(done=True)
        asked = [{"name": c["name"], "arguments": c["arguments"]} for c in calls]
        answers = await asyncio.to_thread(self._calls, task.id, asked)
        texts = answers[len(answers) - len(last) :]
        results: list[Message] = [
            {"role": "tool", "content": text[:_MAX_CHARS], "tool_call_id": c["id"], "name": c["name"]}
            for c, text in zip(last, texts, strict=True)
        ]
        return Step(results, done=False)


@cache
def _sessions() -> Sessions:
    made = Sessions()
    atexit.register(made.close)
    return made


@cache
def _tools(command: tuple[str, ...], folder: str) -> list[Tool]:
    server = Server(command, folder)
    try:
        return server.tools()
    finally:
        server.close()


class Server:
    """One MCP server process, initialised. Raises PeerLost where it does not come up."""

    def __init__(self, command: tuple[str, ...], folder: str) -> None:
        self._numbers = itertools.count(1)
        try:
            self._lines = Lines([*command], clean_environment(), f"MCP server {' '.join(command)}", cwd=folder)
        except OSError as error:
            raise PeerLost(f"MCP server {' '.join(command)} cannot be started: {error}") from error
        about = {"name": "jointrl", "version": "0"}
        hello = {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": about}
        self._ask("initialize", hello, _START_S)
        self._tell({"method": "notifications/initialized"}, "initialized")

    def tools(self) -> list[Tool]:
        """All tools, page by page, with their input schemas."""
        tools: list[Tool] = []
        cursor: dict[str, Any] = {}
        while True:
            page = self._ask("tools/list", cursor, _CALL_S)
            tools += [
                {"name": t["name"], "description": t.get("description", ""), "parameters": t["inputSchema"]}
                for t in page["tools"]
            ]
            if not page.get("nextCursor"):
                return tools
            cursor = {"cursor": page["nextCursor"]}

    def act(self, action: dict[str, Any]) -> str:
        """One tool call's text; what the server or the tool calls an error is its text too."""
        if not isinstance(action["arguments"], dict):
            return "error: the arguments are no JSON object"
        try:
            result = self._ask("tools/call", action, _CALL_S)
        except ForeignError as error:
            return f"error: {error}"
        text = "\n".join(part["text"] for part in result.get("content", []) if part.get("type") == "text")
        return f"error: {text}" if result.get("isError") else text or "ok"

    def close(self) -> None:
        """End the process and what it started."""
        self._lines.kill()

    def _tell(self, row: dict[str, Any], what: str) -> None:
        try:
            self._lines.send({"jsonrpc": "2.0", **row}, time.monotonic() + _CALL_S)
        except LOST as error:
            raise self._lines.lost(what, _CALL_S, error) from error

    def _ask(self, method: str, params: dict[str, Any], timeout: float) -> dict[str, Any]:
        number, deadline = next(self._numbers), time.monotonic() + timeout
        self._tell({"id": number, "method": method, "params": params}, method)
        try:
            while True:
                row = self._lines.receive(deadline)
                if row.get("id") == number and "method" not in row:
                    break
                if "id" in row and "method" in row:  # the server asks us something: we offer nothing
                    refused = {"id": row["id"], "error": {"code": -32601, "message": "not offered"}}
                    self._lines.send({"jsonrpc": "2.0", **refused}, deadline)
        except LOST as error:
            raise self._lines.lost(method, timeout, error) from error
        if "error" in row:
            raise ForeignError(str(row["error"].get("message", row["error"])))
        return row["result"]
