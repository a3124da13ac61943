"""Requests made from /openapi.json by schemathesis, good and bad ones: every answer must be one the document names.

WAYBILL_URL and WAYBILL_KEY name the server and an admin's key. Prints one line per operation and ends with
`N passed, M failed`. What is asked for, and how much of it, stands in schemathesis.toml.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

URL = os.environ["WAYBILL_URL"].rstrip("/")
CONFIG = Path(__file__).with_name("schemathesis.toml")
HOOKS = Path(__file__).with_name("hooks.py")

# These could end the key that the run itself uses, if they were given ids from other answers: they run apart, where all
# the ids they get are made up.
ENDS_KEYS = ["rotate_key", "revoke_key"]
# Its answer has no end to wait for.
ENDLESS = "follow_receipts"
RUNS = [
    ("exclude", "examples,coverage,fuzzing,stateful"),
    ("include", "examples,coverage,fuzzing"),
]
# Many times what a run takes.
RUN_SECONDS_MAX = 1200


def operations():
    """Every operation of the document that ends, as `POST /v1/tasks`."""
    with urllib.request.urlopen(f"{URL}/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    return [
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method, operation in methods.items()
        if operation["operationId"] != ENDLESS
    ]


def outcomes(which, phases):
    """Runs schemathesis once; what went wrong, by operation. Raises when it could not do its work."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{URL}/openapi.json"]
        command += ["--phases", phases, "--no-color", "--report-junit-path", str(report)]
        for name in ENDS_KEYS:
            command += [f"--{which}-operation-id", name]
        if which == "exclude":
            command += ["--exclude-operation-id", ENDLESS]
        env = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, cwd=folder, env=env)
        if not report.exists():
            raise RuntimeError(f"schemathesis reported nothing: {(ended.stderr or ended.stdout).strip()[-2000:]}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        found = {case.get("name"): [bad.text or bad.get("message") or "" for tag in ("failure", "error", "skipped")
                                    for bad in case.iter(tag)] for case in cases}
        if ended.returncode != 0 and not any(found.values()):
            raise RuntimeError(f"schemathesis ended with {ended.returncode}: {ended.stdout.strip()[-2000:]}")
        return found


def main():
    passed = failed = 0
    wanted = operations()
    try:
        found = {}
        for which, phases in RUNS:
            for name, bad in outcomes(which, phases).items():
                found.setdefault(name, []).extend(bad)
    except (OSError, RuntimeError, ElementTree.ParseError, subprocess.TimeoutExpired) as error:
        print(f"FAIL openapi: {error}\n0 passed, 1 failed")
        return 1
    for name in [*wanted, *sorted(set(found) - set(wanted))]:
        bad = found.get(name, ["it was not asked"])
        passed, failed = (passed + (not bad), failed + bool(bad))
        print(f"{'FAIL' if bad else 'ok  '} openapi {name}")
        for detail in bad:
            print("     " + detail.strip().replace("\n", "\n     "))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
