#!/usr/bin/env python3
"""code.py - a grader that runs what the model wrote.

The gold answer is a list of Python assertions, one a line; the response holds a fenced block of Python. Right is what passes all of them.
One JSON line in, one out, for as long as there are lines. What the code prints goes nowhere; what it breaks is gone with this process.
"""
import contextlib
import io
import json
import re
import sys

for line in sys.stdin:
    request = json.loads(line)
    reply = {"id": request["id"]}
    block = re.findall(r"```(?:python)?\n(.*?)```", request["response"], re.S)
    if not block:
        reply["answer"], reply["why"] = False, "no fenced block of Python"
    else:
        reply["match"], reply["extracted"] = True, block[-1]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                names = {}
                exec(block[-1], names)
                exec(request["gold"], names)
        except BaseException as error:  # SystemExit too
            reply["match"], reply["why"] = False, repr(error)
    print(json.dumps(reply), flush=True)
