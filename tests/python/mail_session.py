"""Three agents of one project through /mcp/mail, with the official Python MCP client: what a user of mail will do.

WAYBILL_URL names the server, WAYBILL_KEYS three keys that may read and write mail, separated by spaces. Prints one line per
case and ends with `N passed, M failed`.
"""

import asyncio
import json
import os
import sys
import traceback
import uuid
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client

URL = os.environ["WAYBILL_URL"].rstrip("/")
KEYS = os.environ["WAYBILL_KEYS"].split()

MINIMAL = {
    "ensure_project", "register_agent", "send_message", "reply_message", "fetch_inbox", "acknowledge_message",
    "file_reservation_paths", "release_file_reservations",
}
CORE_BYTES_MAX = 16 * 1024
CASE_SECONDS_MAX = 120


def http_client(key):
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)


@asynccontextmanager
async def handshake(key, path="/mcp/mail?profile=full"):
    async with http_client(key) as http:
        async with streamable_http_client(URL + path, http_client=http) as (read, write):
            async with ClientSession(read, write) as session:
                await session.initialize()
                yield session


@asynccontextmanager
async def stateless(key, path="/mcp/mail?profile=full"):
    async with http_client(key) as http:
        async with Client(streamable_http_client(URL + path, http_client=http)) as client:
            assert client.protocol_version == "2026-07-28", client.protocol_version
            yield client


class Agent:
    """One agent: its session, its name, its project."""

    def __init__(self, session, project):
        self.session, self.project, self.name = session, project, None

    async def call(self, tool, **arguments):
        result = await self.session.call_tool(tool, arguments)
        assert not result.is_error, result
        assert result.structured_content is not None, result
        return result.structured_content

    async def refused(self, tool, **arguments):
        result = await self.session.call_tool(tool, arguments)
        assert result.is_error, result
        return result.structured_content

    async def register(self, program):
        await self.call("ensure_project", human_key=self.project)
        me = await self.call("register_agent", project_key=self.project, program=program, model="test")
        self.name = me["name"]
        return me

    async def as_agent(self, tool, **arguments):
        return await self.call(tool, project_key=self.project, agent_name=self.name, **arguments)

    async def send(self, to, subject, body, **more):
        sent = await self.call(
            "send_message", project_key=self.project, sender_name=self.name, to=to, subject=subject, body_md=body, **more
        )
        return sent["deliveries"][0]["payload"]

    async def inbox(self, **more):
        return (await self.as_agent("fetch_inbox", **more))["result"]

    async def read(self, uri):
        contents = (await self.session.read_resource(uri)).contents
        return json.loads(contents[0].text)


async def session_of_three(connect):
    project = f"/data/projects/case-{uuid.uuid4().hex}"
    async with connect(KEYS[0]) as one, connect(KEYS[1]) as two, connect(KEYS[2]) as three:
        a, b, c = (Agent(session, project) for session in (one, two, three))
        for agent in (a, b, c):
            await agent.register("python-client")
        assert len({a.name, b.name, c.name}) == 3, (a.name, b.name, c.name)

        # Reserve, and meet somebody else's reservation.
        granted = await a.as_agent("file_reservation_paths", paths=["src/api/*.py", "README.md"], reason="invoices")
        assert len(granted["granted"]) == 2 and not granted["conflicts"], granted
        met = await b.as_agent("file_reservation_paths", paths=["src/api/main.py", "docs/a.md"])
        assert [path["path_pattern"] for path in met["granted"]] == ["docs/a.md"], met
        assert met["conflicts"][0]["path"] == "src/api/main.py", met
        assert met["conflicts"][0]["holders"][0]["agent"] == a.name, met

        # Write, answer, acknowledge. Those who have met over files may write to each other; c is asked first.
        for agent in (a, c):
            await agent.as_agent("set_contact_policy", policy="open")
        sent = await b.send([a.name], "May I?", "I need **main.py**.", cc=[c.name], thread_id="FEAT-1", ack_required=True)
        found = await a.inbox(include_bodies=True)
        assert [(m["id"], m["from"], m["body_md"]) for m in found] == [(sent["id"], b.name, "I need **main.py**.")], found
        assert found[0].get("read_ts") is None, "a look does not mark anything"
        assert [m["kind"] for m in await c.inbox()] == ["cc"]
        reply = await a.call(
            "reply_message", project_key=project, message_id=sent["id"], sender_name=a.name, body_md="At noon.", cc=[c.name]
        )
        assert (reply["thread_id"], reply["subject"], reply["to"]) == ("FEAT-1", "Re: May I?", [b.name]), reply
        first = await a.as_agent("acknowledge_message", message_id=sent["id"])
        again = await a.as_agent("acknowledge_message", message_id=sent["id"])
        assert first["acknowledged"] and first["acknowledged_at"] == again["acknowledged_at"], (first, again)
        for name, tool in ((b.name, "acknowledge_message"), (b.name, "mark_message_read")):
            refused = await b.refused(tool, project_key=project, agent_name=name, message_id=sent["id"])
            assert refused.get("error"), refused

        # Find it again, by words and by address.
        hits = await c.call("search_messages", project_key=project, query="main.py")
        assert [hit["id"] for hit in hits["result"]] == [sent["id"]], hits
        thread = await c.read(f"resource://thread/FEAT-1?project={project}&include_bodies=true")
        assert [m["from"] for m in thread["messages"]] == [b.name, a.name], thread
        by_address = await a.read(f"resource://inbox/{a.name}?project={project}&include_bodies=true")
        assert [m["id"] for m in by_address["messages"]] == [sent["id"]], by_address
        held = await b.read(f"resource://file_reservations/{project.strip('/').replace('/', '-')}")
        assert {h["path_pattern"] for h in held["file_reservations"]} == {"src/api/*.py", "README.md", "docs/a.md"}, held

        # Release, and the file is free.
        released = await a.as_agent("release_file_reservations")
        assert released["released"] == 2, released
        assert (await a.as_agent("release_file_reservations"))["released"] == 0
        free = await b.as_agent("file_reservation_paths", paths=["src/api/main.py"])
        assert len(free["granted"]) == 1 and not free["conflicts"], free


async def tools_of_profiles(connect):
    async with connect(KEYS[0], "/mcp/mail?profile=minimal") as session:
        assert {tool.name for tool in (await session.list_tools()).tools} == MINIMAL
    async with connect(KEYS[0], "/mcp/mail") as session:
        tools = (await session.list_tools()).tools
        listed = json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tools])
        assert MINIMAL < {tool.name for tool in tools} and len(listed) <= CORE_BYTES_MAX, len(listed)
    async with connect(KEYS[0], "/mcp") as session:
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert "mail.send_message" in names and "send_message" not in names, names


async def resources_are_listed(connect):
    async with connect(KEYS[0]) as session:
        templates = {template.uri_template for template in (await session.list_resource_templates()).resource_templates}
        assert any(template.startswith("resource://inbox/{agent}") for template in templates), templates
        assert "resource://projects" in {str(resource.uri) for resource in (await session.list_resources()).resources}


CASES = [session_of_three, tools_of_profiles, resources_are_listed]
TRANSPORTS = {"handshake": handshake, "stateless": stateless}


async def main():
    passed = failed = 0
    for transport, connect in TRANSPORTS.items():
        for case in CASES:
            name = f"mail {transport}: {case.__name__}"
            try:
                await asyncio.wait_for(case(connect), CASE_SECONDS_MAX)
            except Exception as error:
                # Task groups wrap what went wrong; the reader wants the thing itself.
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                failed += 1
                print(f"FAIL {name}: {error!r}")
                traceback.print_exception(error, limit=-3)
            else:
                passed += 1
                print(f"ok   {name}")
            sys.stdout.flush()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
