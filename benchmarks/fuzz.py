"""Random bytes for every reader, and random flags for every command: each must be taken or refused in one line.

    python benchmarks/fuzz.py --minutes 10 --seed 0          # all targets, ten minutes each
    python benchmarks/fuzz.py --only npz,flags --minutes 1      # the published results of the others stay
    python benchmarks/fuzz.py --only npz --case 1234 --seed 0   # one case again, with its output

A case writes a good file, changes it and runs a command on it in this process; the case of a seed and number is always
the same. A finding is an exit code other than 0 and 2, more than one line on stderr or none, a file that was written by
a refused command, or a case that takes longer than a minute. A command that passes every check is stopped where JAX
would start. A target's cases run in a process of their own, so that one that crashes it is found, too.
"""

import argparse
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import RESULTS, publish
from fuzz_files import TARGETS, Case

LONGEST = 60.0  # seconds of a case
MOST_FINDINGS = 20  # of a target, after which it ends
STARTED = 90  # the exit code of a command that would have started JAX


class Started(BaseException):
    """A command has passed all checks."""


class Late(BaseException):
    """A case takes too long."""


def start(*_: object, **__: object) -> None:
    """Stands where JAX would start."""
    raise Started


def late(*_: object) -> None:
    """Ends a case that takes too long."""
    raise Late


def run_case(case: Case) -> tuple[int | str, str]:
    """Exit code, or what else ended a command, and what it said on stderr."""
    from rscfed_jax.cli import commands, main

    commands.start_jax = start
    said = io.StringIO()
    code: int | str
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = main(case.arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except Started:
        code = STARTED
    except Late:
        code = f"longer than {LONGEST:.0f} s"
    except BaseException:
        code = traceback.format_exc().strip().splitlines()[-1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return code, said.getvalue()


def wrong_with(code: int | str, said: str, before: dict[str, bytes], after: dict[str, bytes]) -> str | None:
    """What is wrong with the way a case ended."""
    if code not in (0, 2, STARTED):
        last = said.strip().splitlines()[-1:] or [""]
        return f"ended with {code}: {last[0]}"
    if code == 2 and (said.count("\n") != 1 or "error: " not in said):
        return f"said {said.count(chr(10))} lines: {said[:200]!r}"
    if code == 2 and before != after:
        return f"was refused, but wrote {sorted(after.keys() ^ before.keys()) or 'into a file'}"
    return None


def content_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def try_case(target: str, seed: int, number: int) -> tuple[int | str, str, str | None]:
    """Makes and runs one case: exit code, what it said, and what is wrong with that."""
    rng = random.Random(f"{target} {seed} {number}")
    # Beside the case's own files is the cache, into which also a refused command may write.
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        os.environ["XDG_CACHE_HOME"] = cache
        case = TARGETS[target](rng)
        for name, content in case.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content)
        before = content_of(Path(place))
        code, said = run_case(case)
        return code, said, wrong_with(code, said, before, content_of(Path(place)))


def work(target: str, seed: int, first: int, minutes: float) -> None:
    """Tries cases until the time is over; a line says how each ended, so that a crash is found by the last one."""
    until = time.monotonic() + 60 * minutes
    number = first
    while time.monotonic() < until:
        print(json.dumps({"begins": number}), flush=True)
        code, _, wrong = try_case(target, seed, number)
        print(json.dumps({"ended": number, "code": code, "wrong": wrong}), flush=True)
        number += 1


def watch(target: str, seed: int, minutes: float) -> dict[str, Any]:
    """Runs a target's cases in processes of their own, a new one after each crash."""
    until, first = time.monotonic() + 60 * minutes, 0
    ends: dict[str, int] = {}
    findings: list[dict[str, Any]] = []
    while (left := until - time.monotonic()) > 0 and len(findings) < MOST_FINDINGS:
        command = [sys.executable, __file__, "--work", target, "--seed", str(seed), "--first", str(first)]
        command += ["--minutes", str(left / 60)]
        begun = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                begun = told.get("begins")
                if begun is not None:
                    first = begun + 1
                    continue
                ends[str(told["code"])] = ends.get(str(told["code"]), 0) + 1
                if told["wrong"]:
                    findings.append({"case": told["ended"], "wrong": told["wrong"]})
                    if len(findings) >= MOST_FINDINGS:
                        process.terminate()
                        break
        if begun is not None:
            findings.append({"case": begun, "wrong": f"the process died ({process.returncode})"})
    started = ends.pop(str(STARTED), 0)
    return {"cases": first, "ends": ends | {"passed all checks": started}, "findings": findings}


def main() -> int:
    """Tries all targets, or one case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each target (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help=f"some targets, with commas between them: {', '.join(TARGETS)}")
    parser.add_argument("--jobs", type=int, default=1, help="targets at once (default 1)")
    parser.add_argument("--case", type=int, help="run only this case of the one target, and show what it says")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.seed, arguments.first, arguments.minutes)
        return 0
    targets = arguments.only.split(",") if arguments.only else list(TARGETS)
    if arguments.case is not None:
        case = TARGETS[targets[0]](random.Random(f"{targets[0]} {arguments.seed} {arguments.case}"))
        print(" ".join(case.arguments), {name: len(content) for name, content in case.files.items()})
        print(*try_case(targets[0], arguments.seed, arguments.case), sep="\n")
        return 0
    published = RESULTS / "fuzz.json"
    found = json.loads(published.read_text())["result"]["targets"] if arguments.only and published.exists() else {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda target: watch(target, arguments.seed, arguments.minutes), targets)
        for target, result in zip(targets, results, strict=True):
            found[target] = {"minutes": arguments.minutes, "seed": arguments.seed, **result}
            print(f"{target}: {json.dumps(result)}", file=sys.stderr)
    figures = {
        "cases": sum(each["cases"] for each in found.values()),
        "findings": sum(len(each["findings"]) for each in found.values()),
        "targets": found,
    }
    publish("fuzz", figures)
    return 1 if figures["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
