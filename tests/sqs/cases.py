"""Runs the cases of one client, and takes away what lies around on the machine: it is no part of the test.

To be imported before an SDK, which looks at the environment when it is.
"""

import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
    os.environ[name] = os.devnull
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"):
    os.environ.pop(name, None)


def run(client, cases, at_once=1):
    """Prints one line per case, in their order, and ends with `N passed, M failed`; the exit code."""
    passed = failed = 0
    with ThreadPoolExecutor(at_once) as pool:
        outcomes = [(case.__name__, pool.submit(case)) for case in cases]
        for name, outcome in outcomes:
            error = outcome.exception()
            if error is None:
                passed += 1
                print(f"ok   {client}: {name}", flush=True)
            else:
                failed += 1
                print(f"FAIL {client}: {name}: {error!r}", flush=True)
                traceback.print_exception(error, limit=-3, file=sys.stderr)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
