"""The MCP project's own conformance suite, scenario by scenario, against a server started with --insecure-dev.

WAYBILL_URL names the server; CONFORMANCE_STABLE and CONFORMANCE_NEXT are the npm prefixes of the two lines of the
suite (see `cargo xtask setup`). Prints one line per scenario and ends with `N passed, M failed`. A scenario whose
only failed checks are excused below counts as neither.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
URL = os.environ["WAYBILL_URL"].rstrip("/")
PREFIX = {
    "stable": Path(os.environ.get("CONFORMANCE_STABLE", ROOT / ".cache/npm/stable")),
    "next": Path(os.environ.get("CONFORMANCE_NEXT", ROOT / ".cache/npm/next")),
}

# The suite needs Node 22; it is installed beside the stable line.
NODE = PREFIX["stable"] / "node_modules/node/bin/node"
SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"

STATELESS = ["--spec-version", "2026-07-28"]
RUNS = [
    ("stable", "server-initialize", []),
    ("stable", "ping", []),
    ("stable", "tools-list", []),
    ("stable", "dns-rebinding-protection", []),
    ("next", "server-stateless", STATELESS),
    ("next", "http-header-validation", STATELESS),
    ("next", "tools-list", STATELESS),
]

# Checks that the suite itself reports as untestable without its own diagnostic tools, which are no part of a product.
# An entry that passes, or fails for any other reason, fails the scenario: the list can only shrink.
EXCUSED = {
    ("next", "server-stateless"): {
        # Wants test_missing_capability; no tool of ours relies on a capability of the client.
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
        # Wants test_streaming_elicitation; no tool of ours asks the user anything in the middle of a call.
        "sep-2575-http-server-no-independent-requests-on-stream",
        # Wants test_logging_tool; the server sends no log notifications at all.
        "sep-2575-server-no-log-without-loglevel",
    },
}

SCENARIO_SECONDS_MAX = 300


def checks_of(line, scenario, flags):
    """Runs one scenario and returns its checks as the suite recorded them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [NODE, PREFIX[line] / SUITE, "server", "--url", f"{URL}/mcp", "--scenario", scenario]
        ended = subprocess.run(
            [*map(str, command), *flags, "-o", folder],
            capture_output=True,
            text=True,
            timeout=SCENARIO_SECONDS_MAX,
            env={**os.environ, "NO_COLOR": "1"},
        )
        files = list(Path(folder).rglob("checks.json"))
        if not files:
            raise RuntimeError(f"the suite recorded nothing: {(ended.stderr or ended.stdout).strip()[-800:]}")
        return [check for file in files for check in json.loads(file.read_text())]


def judge(line, scenario, checks):
    """Splits the failed checks into real ones and excused ones."""
    excused = EXCUSED.get((line, scenario), set())
    failures = [check for check in checks if check["status"] == "FAILURE"]
    untestable = [c for c in failures if c["id"] in excused and (c.get("details") or {}).get("untestable")]
    real = [f"{c['id']}: {c.get('errorMessage', c['description'])}" for c in failures if c not in untestable]
    stale = excused - {check["id"] for check in failures}
    real += [f"{name}: excused, but it no longer fails: take it off the list" for name in sorted(stale)]
    if not any(check["status"] == "SUCCESS" for check in checks):
        real.append("no check passed")
    return real, [f"{c['id']}: {c['errorMessage']}" for c in untestable]


def main():
    passed = failed = 0
    for line, scenario, flags in RUNS:
        name = f"conformance {line} {scenario}"
        try:
            checks = checks_of(line, scenario, flags)
            real, excused = judge(line, scenario, checks)
        except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            checks, real, excused = [], [str(error)], []
        good = sum(check["status"] == "SUCCESS" for check in checks)
        if real:
            failed += 1
            print(f"FAIL {name}: {good} checks passed, {len(real)} failed")
        elif excused:
            print(f"part {name}: {good} checks passed, {len(excused)} not testable without fixture tools")
        else:
            passed += 1
            print(f"ok   {name}: {good} checks")
        for detail in real + excused:
            print(f"     {detail}")
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
