"""The official Python MCP client against a running server: what a user's agent will do, over every transport.

WAYBILL_URL and WAYBILL_KEY name the server and a key that may create tasks; WAYBILL_BIN is the program for the
stdio bridge. Prints one line per case and ends with `N passed, M failed`.
"""

import asyncio
import json
import os
import sys
import traceback
import uuid
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

URL = os.environ["WAYBILL_URL"].rstrip("/")
KEY = os.environ["WAYBILL_KEY"]
BIN = os.environ.get("WAYBILL_BIN", "target/debug/waybill")

TOOLS = [f"asyncgate.{verb}_task" for verb in ("create", "get", "cancel")] + ["asyncgate.list_tasks"]

# A case that hangs is a failed case, and the rest still runs.
CASE_SECONDS_MAX = 120


def http_client(key):
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)


@asynccontextmanager
async def handshake(path):
    """Revisions up to 2025-11-25: an initialize handshake comes first."""
    async with http_client(KEY) as http:
        async with streamable_http_client(URL + path, http_client=http) as (read, write):
            async with ClientSession(read, write) as session:
                started = await session.initialize()
                assert started.server_info.name == "waybill", started.server_info
                yield session


@asynccontextmanager
async def stateless(path):
    """Revision 2026-07-28: no handshake, the client discovers what the server speaks."""
    async with http_client(KEY) as http:
        async with Client(streamable_http_client(URL + path, http_client=http)) as client:
            assert client.protocol_version == "2026-07-28", client.protocol_version
            yield client


@asynccontextmanager
async def stdio():
    bridge = StdioServerParameters(command=BIN, args=["mcp", "--url", URL], env={**os.environ, "WAYBILL_KEY": KEY})
    async with stdio_client(bridge) as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            yield session


async def answer(session, tool, **arguments):
    """The structured content of a call that must succeed."""
    result = await session.call_tool(f"asyncgate.{tool}", arguments)
    assert not result.is_error, result
    assert result.structured_content is not None, result
    return result.structured_content


async def refusal(session, tool, **arguments):
    """The structured content of a call that must be refused as a tool result, where a model can read it."""
    result = await session.call_tool(f"asyncgate.{tool}", arguments)
    assert result.is_error, result
    return result.structured_content


async def tools_have_schemas(session):
    tools = {tool.name: tool for tool in (await session.list_tools()).tools}
    for name in TOOLS:
        assert name in tools, f"{name} is not among {sorted(tools)}"
        assert tools[name].input_schema.get("type") == "object", f"{name}: {tools[name].input_schema}"
        assert tools[name].description, f"{name} has no description"


async def created_task_is_found(session):
    kind = f"case.{uuid.uuid4().hex}"
    created = await answer(session, "create_task", type=kind, payload={"text": "grüße"}, priority=3)
    assert created["status"] == "queued", created
    task = await answer(session, "get_task", task_id=created["task_id"])
    assert (task["type"], task["payload"], task["priority"]) == (kind, {"text": "grüße"}, 3), task
    listed = await answer(session, "list_tasks", type=kind)
    assert [task["task_id"] for task in listed["tasks"]] == [created["task_id"]], listed


async def task_is_cancelled_once(session):
    created = await answer(session, "create_task", type="case.cancel", payload={})
    first = await answer(session, "cancel_task", task_id=created["task_id"], reason="changed my mind")
    assert (first["ok"], first["status"]) == (True, "canceled"), first
    second = await answer(session, "cancel_task", task_id=created["task_id"])
    assert (second["ok"], second["status"]) == (False, "canceled"), second
    task = await answer(session, "get_task", task_id=created["task_id"])
    assert task["status"] == "canceled", task


async def replayed_key_finds_the_first_task(session):
    request = {"type": "case.replay", "payload": {"n": 1}, "idempotency_key": f"case-{uuid.uuid4()}"}
    first = await answer(session, "create_task", **request)
    assert not first.get("idempotent_replay"), first
    again = await answer(session, "create_task", **request)
    assert again["task_id"] == first["task_id"], (first, again)
    assert again["idempotent_replay"] is True, again


async def unknown_field_is_refused(session):
    refused = await refusal(session, "create_task", type="case.bad", payload={}, colour="blue")
    assert refused["error"] == "invalid_request", refused


async def unknown_task_is_refused(session):
    refused = await refusal(session, "get_task", task_id=str(uuid.uuid4()))
    assert refused.get("error"), refused


async def pages_are_walked(session):
    kind = f"case.{uuid.uuid4().hex}"
    made = [(await answer(session, "create_task", type=kind, payload={"n": n}))["task_id"] for n in range(3)]
    seen, cursor = [], None
    for _ in range(len(made)):
        page = await answer(session, "list_tasks", type=kind, limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [task["task_id"] for task in page["tasks"]]
        cursor = page.get("next_cursor")
        if not cursor:
            break
    assert sorted(seen) == sorted(made), (made, seen)


CASES = [
    tools_have_schemas,
    created_task_is_found,
    task_is_cancelled_once,
    replayed_key_finds_the_first_task,
    unknown_field_is_refused,
    unknown_task_is_refused,
    pages_are_walked,
]

TRANSPORTS = {
    "handshake /mcp": lambda: handshake("/mcp"),
    "handshake /mcp/tasks": lambda: handshake("/mcp/tasks"),
    "stateless /mcp": lambda: stateless("/mcp"),
    "stateless /mcp/tasks": lambda: stateless("/mcp/tasks"),
    "stdio": stdio,
}


# A client of an older revision: the handshake agrees on that revision, and every later request names it.
OLDER_REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


async def older_revision_is_spoken(revision):
    async with http_client(KEY) as http:
        headers = {"Accept": "application/json, text/event-stream"}

        async def request(method, params, number):
            message = {"jsonrpc": "2.0", "method": method, "params": params}
            if number is not None:
                message["id"] = number
            reply = await http.post(f"{URL}/mcp", json=message, headers=headers)
            assert reply.status_code == (200 if number is not None else 202), f"{reply.status_code} {reply.text}"
            if number is None:
                return None
            texts = [line[5:] for line in reply.text.splitlines() if line.startswith("data:") and line[5:].strip()]
            answer = json.loads(texts[-1] if texts else reply.text)
            assert answer["id"] == number and "error" not in answer, answer
            return answer["result"]

        hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "case", "version": "1"}}
        started = await request("initialize", hello, 1)
        assert started["protocolVersion"] == revision, started
        assert "tools" in started["capabilities"], started
        headers["MCP-Protocol-Version"] = revision
        await request("notifications/initialized", {}, None)
        assert await request("ping", {}, 2) == {}
        listed = {tool["name"] for tool in (await request("tools/list", {}, 3))["tools"]}
        assert set(TOOLS) <= listed, listed
        call = {"name": "asyncgate.create_task", "arguments": {"type": "case.older", "payload": {}}}
        made = await request("tools/call", call, 4)
        # Older clients know nothing but the text.
        assert json.loads(made["content"][0]["text"])["status"] == "queued", made
        refused = await request("tools/call", {"name": "asyncgate.get_task", "arguments": {"task_id": "x"}}, 5)
        assert refused["isError"] is True, refused


async def unknown_revision_is_answered_with_one_of_ours():
    async with http_client(KEY) as http:
        hello = {"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {"name": "case", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        reply = await http.post(
            f"{URL}/mcp", json=message, headers={"Accept": "application/json, text/event-stream"}
        )
        texts = [line[5:] for line in reply.text.splitlines() if line.startswith("data:") and line[5:].strip()]
        answer = json.loads(texts[-1] if texts else reply.text)
        assert answer["result"]["protocolVersion"] in OLDER_REVISIONS + ["2026-07-28"], answer


async def wrong_key_is_401():
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "case", "version": "1"},
        },
    }
    headers = {"Accept": "application/json, text/event-stream"}
    last = "b" if KEY.endswith("a") else "a"
    for key in (KEY[:-1] + last, "aga_nonsense", "x"):
        async with http_client(key) as http:
            reply = await http.post(f"{URL}/mcp", json=request, headers=headers)
        assert reply.status_code == 401, f"{reply.status_code} {reply.text}"


async def wrong_key_ends_the_client():
    try:
        async with http_client("aga_nonsense") as http:
            async with streamable_http_client(f"{URL}/mcp", http_client=http) as (read, write):
                async with ClientSession(read, write) as session:
                    await session.initialize()
    except Exception:
        return
    raise AssertionError("initialize succeeded with a wrong key")


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    async def case(self, name, run):
        try:
            await asyncio.wait_for(run, CASE_SECONDS_MAX)
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
                raise
            self.failed += 1
            print(f"FAIL {name}: {innermost(error)!r}", flush=True)
            traceback.print_exception(error, limit=-3)
        else:
            self.passed += 1
            print(f"ok   {name}", flush=True)


def innermost(error):
    """Task groups wrap what went wrong; the reader wants the thing itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def over(transport, case):
    async with transport() as session:
        await case(session)


async def main():
    report = Report()
    for label, transport in TRANSPORTS.items():
        for case in CASES:
            await report.case(f"python {label}: {case.__name__}", over(transport, case))
    for revision in OLDER_REVISIONS:
        await report.case(f"python: older revision {revision} is spoken", older_revision_is_spoken(revision))
    for case in (unknown_revision_is_answered_with_one_of_ours, wrong_key_is_401, wrong_key_ends_the_client):
        await report.case(f"python: {case.__name__}", case())
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
