"""Laws of MCP tool servers: their tools are ours by schema, every episode has its own, and none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from environments.adapters import mcp
from environments.adapters.host import PeerLost
from environments.adapters.mcp import McpTools, Server
from environments.catalogue import resolve
from environments.task import Message

PLAIN = """
import json, sys
total = 0
for line in sys.stdin:
    row = json.loads(line)
    if "id" not in row or "method" not in row:
        continue
    method, args = row["method"], row.get("params", {})
    if method == "initialize":
        about = {"name": "toy", "version": "1"}
        out = {"protocolVersion": args["protocolVersion"], "capabilities": {}, "serverInfo": about}
        print(json.dumps({"jsonrpc": "2.0", "id": 99, "method": "roots/list"}))
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        first = {"tools": [{"name": "add", "description": "add n", "inputSchema": schema}], "nextCursor": "2"}
        out = {"tools": [{"name": "hang", "inputSchema": schema}]} if args.get("cursor") else first
    elif args["name"] == "add" and isinstance(args["arguments"].get("n"), int):
        total += args["arguments"]["n"]
        out = {"content": [{"type": "text", "text": str(total)}]}
    elif args["name"] == "die":
        sys.exit(1)
    elif args["name"] == "hang":
        continue
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": row["id"], "error": {"code": -32602, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": row["id"], "result": out}), flush=True)
"""
REAL = '''
from mcp.server import MCPServer
server = MCPServer("toy")
total = 0
@server.tool()
def add(n: int) -> str:
    """add n"""
    global total
    total += n
    return str(total)
server.run()
'''


@pytest.fixture
def env(tmp_path: Path) -> McpTools:
    return brought(tmp_path, PLAIN)


def brought(folder: Path, server: str) -> McpTools:
    (folder / "server.py").write_text(server)
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps({"prompt": f"add {i}", "answer": str(i)}) + "\n" for i in range(20))
    )
    config = {"command": [sys.executable, "server.py"], "rows": "tasks.jsonl", "domain": "sums"}
    (folder / "tools.json").write_text(json.dumps(config))
    made = resolve(f"mcp:{folder}/tools.json")
    assert isinstance(made, McpTools)
    return made


def call(name: str, arguments: object) -> Message:
    made = {"id": f"{name}:0", "name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [made]}  # type: ignore[typeddict-item]


def talk(env: McpTools, *messages: Message) -> list[str]:
    """The tool results of a conversation, step by step."""
    task = env.task("train", 0, 1)
    conversation, said = [*task.prompt], []
    for message in messages:
        conversation.append(message)
        step = asyncio.run(env.step(task, conversation, None))
        conversation += step.messages
        said += [m["content"] for m in step.messages]
    return said


def test_tools_are_the_servers_and_state_is_the_episodes(env: McpTools) -> None:
    add, hang = env.tools(env.task("train", 0, 1))
    assert (add["name"], add["description"], add["parameters"]["required"], hang["name"]) == (
        "add",
        "add n",
        ["n"],
        "hang",
    )
    assert talk(env, call("add", {"n": 2}), call("add", {"n": 5})) == ["2", "7"]
    assert talk(env, call("add", {"n": 2}), call("add", {"n": 1})) == ["2", "3"], "another episode, another server"
    assert talk(env, call("add", {"n": "x"}), call("nothing", {}), call("add", "not json")) == [
        "error: no", "error: no", "error: the arguments are no JSON object"]  # fmt: skip
    mcp._sessions().close()


def test_a_server_that_dies_or_hangs_is_named_and_replaced(env: McpTools, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerLost, match=r"MCP server .*server.py \(pid \d+\) is lost \(it ended\) at 'tools/call'"):
        talk(env, call("add", {"n": 3}), call("die", {}))
    monkeypatch.setattr(mcp, "_CALL_S", 0.3)
    with pytest.raises(PeerLost, match=r"no answer within 0\.3 s at 'tools/call'"):
        talk(env, call("hang", {"n": 1}))
    monkeypatch.setattr(mcp, "_CALL_S", 30.0)
    assert talk(env, call("add", {"n": 4})) == ["4"]
    mcp._sessions().close()


def test_a_closed_server_is_gone(env: McpTools) -> None:
    server = Server(env.command, env.folder)
    pid = server._lines._process.pid
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_reward_comes_from_the_rows(env: McpTools) -> None:
    task = env.task("train", 1, 1)
    for text, reward in ((task.answer, 1.0), ("no", 0.0), ("", 0.0)):
        assert (
            asyncio.run(env.grade(task, [*task.prompt, {"role": "assistant", "content": text}], None)).reward == reward
        )


def test_a_server_of_the_mcp_package_speaks_the_same(tmp_path: Path) -> None:
    pytest.importorskip("mcp.server")
    env = brought(tmp_path, REAL)
    assert [t["name"] for t in env.tools(env.task("train", 0, 1))] == ["add"]
    assert talk(env, call("add", {"n": 2}), call("add", {"n": 5})) == ["2", "7"]
    mcp._sessions().close()
