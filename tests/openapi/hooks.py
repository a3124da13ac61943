"""Loaded by schemathesis. A server that is asked to wait does: the waiting is taken out of what is asked, not the field."""

import schemathesis


def patient(value):
    """A positive whole number; in a query it may be a text."""
    return not isinstance(value, bool) and str(value).isdecimal() and int(value) > 0


@schemathesis.hook
def before_call(context, case, kwargs):
    for part in (case.body, case.query):
        if isinstance(part, dict) and patient(part.get("wait_seconds")):
            part["wait_seconds"] = 0
