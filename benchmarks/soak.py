"""Runs killed with SIGKILL at random moments and resumed until they are done, compared with runs left alone.

    python benchmarks/soak.py --kills 1000 --folder /tmp/soak     # stopped, the same command continues it

There are four kinds: `train` with a warm-up, `train` with its population on disk, `grid`, and `train` by two processes.
A run is killed a few times. Most kills are aimed: at the n-th time that a process traces, compiles, trains, evaluates,
writes a checkpoint, client states, metrics, programs for the cache or its results. The others come at any time after
the start. In the end the directory must hold what that of the run left alone holds, wall-clock fields aside.
"""

import argparse
import json
import math
import os
import random
import shutil
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from soak_processes import COLD, PHASES, PROMPT, QUICK, REAL, WARM, Place, Process, prepare

from rscfed_jax.storage.checkpoint import FILE, read_arrays, rounds_in
from rscfed_jax.storage.client_file import FileRecords

ROUNDS, EVERY = 40, 4
FLAGS = [
    *("--image-size", "16", "--gamma", "iid", "--batch-size", "16", "--subsets", "2", "--subset-size", "2"),
    *("--model", str(Path(__file__).parents[1] / "tests" / "tiny_network.py")),
    *("--rounds", str(ROUNDS), "--eval-every", str(EVERY), "--checkpoint-every", "3", "--quiet"),
]
SMALL = ["--dataset", "synthetic:train=120,test=40,classes=3,size=16", "--clients", "4", "--min-client-size", "5"]
MANY = ["--dataset", "synthetic:train=400,test=40,classes=3,size=16", "--clients", "40", "--min-client-size", "5"]
WARM_UP = ["--warmup-rounds", "4"]
RESULTS_OF_GRID = ("grid.csv", "summary.csv", "summary.md")
WALL_CLOCK = ("seconds", "seconds_per_round", "compile_seconds")
LONGEST = 900  # seconds until a process counts as hanging; the machine may be busy
COMPANION = 5  # seconds that the second of two processes has for its own end
ONCE = ("data", "opening", "resumption", "warm-up", "summary", "tables")  # phases that a process enters but once
UNTOLD = {"metrics.jsonl", "summary.json", "curve.png", "pseudo_labels.png", "clients.bin", "grid.json"}


class Kind(NamedTuple):
    """A command to kill."""

    command: list[str]
    share: float  # of the runs
    processes: int = 1


KINDS = {
    "train": Kind(["train", *FLAGS, *SMALL, *WARM_UP, "--devices", "1", "--resume"], 0.45),
    "disk": Kind(["train", *FLAGS, *MANY, *WARM_UP, "--devices", "1", "--population", "disk", "--resume"], 0.3),
    "grid": Kind(["grid", *FLAGS, *SMALL, "--devices", "1", "--set", "beta=0,100"], 0.17),
    "two": Kind(["train", *FLAGS, *SMALL, "--resume"], 0.08, processes=2),
}


class Soak:
    """The runs of a folder, and the file that tells what became of them."""

    def __init__(self, folder: Path):
        self.folder, self.state = folder.absolute(), folder.absolute() / "state.jsonl"
        self.folder.mkdir(parents=True, exist_ok=True)

    def outcomes(self) -> list[dict[str, Any]]:
        """What became of the runs that are done; a line that a kill of this script left unfinished is dropped."""
        if not self.state.exists():
            return []
        content = self.state.read_text()
        if not content.endswith("\n"):
            content = content[: content.rfind("\n") + 1]
            self.state.write_text(content)
        return [json.loads(line) for line in content.splitlines()]

    def start(self, kind: str, out: Path, how: str) -> list[Process]:
        """Starts or resumes a run."""
        command = [*KINDS[kind].command, "--out", str(out)]
        cache, programs = self.folder / "cache", self.folder / "programs" / kind
        # XLA packs only programs that it has compiled itself.
        if how == COLD or (how == QUICK and not programs.exists()):
            shutil.rmtree(cache := self.folder / "cold", ignore_errors=True)
        place = Place(cache, programs, self.folder / "said.txt")
        place.log.unlink(missing_ok=True)
        if KINDS[kind].processes == 1:
            return [Process(command, place, how=how)]
        command += ["--coordinator", f"127.0.0.1:{_free_port()}", "--num-processes", "2", "--process-id"]
        how = WARM if how == QUICK else how  # a program of several processes cannot be stored
        return [Process([*command, str(number)], place, how=how) for number in range(2)]

    def finish(self, kind: str, out: Path, how: str) -> float:
        """Runs a command to its end, which must be good, and returns how many seconds that took."""
        began = time.monotonic()
        both = self.start(kind, out, how)
        for process in both:
            process.wait(LONGEST)
        for process in both:
            process.kill()
        if any(process.code for process in both):
            codes = [process.code for process in both]
            raise RuntimeError(f"{kind} ended with {codes}: {(self.folder / 'said.txt').read_text()[-2000:]}")
        return time.monotonic() - began

    def run_alone(self, kind: str) -> Any:
        """What a run is like that nobody kills."""
        out, done = self.folder / "whole" / kind, self.folder / "whole" / f"{kind}.done"
        if not done.exists():
            for folder in (out, self.folder / "programs" / kind):
                shutil.rmtree(folder, ignore_errors=True)
            self.finish(kind, out, QUICK)
            again = self.folder / "whole" / f"{kind}-real"  # its programs are cached for real processes, too
            shutil.rmtree(again, ignore_errors=True)
            seconds = self.finish(kind, again, REAL)
            if different := _differences(outcome_of(out), outcome_of(again)):
                raise RuntimeError(f"{kind}: two runs left alone differ: {different}")
            done.write_text(str(seconds))
        return outcome_of(out), float(done.read_text())

    def kill_and_resume(self, number: int, *, seed: int, most: int) -> dict[str, Any]:
        """Kills run `number` some times, at most `most`, and resumes it until it is done."""
        rng = random.Random(f"{seed} {number}")
        kind = rng.choices(list(KINDS), [kind.share for kind in KINDS.values()])[0]
        expected, life = self.run_alone(kind)
        out = self.folder / f"run{number}"
        shutil.rmtree(out, ignore_errors=True)
        wanted, began = min(rng.randint(3, 15), most), time.monotonic()
        kills: list[dict[str, Any]] = []
        wrong: list[str] = []
        torn_at_kill = 0
        while len(kills) < wanted:
            how = rng.choices((QUICK, WARM, COLD, REAL), (0.7, 0.18, 0.04, 0.08))[0]
            both = self.start(kind, out, how)
            killed = self._kill(both, out, life, rng)
            wrong += self._complaints(both, killed is not None)
            if killed is None:
                break
            kills.append({"how": both[0].how} | killed)
            torn_at_kill += _torn(out)
        try:
            self.finish(kind, out, QUICK)
            found = outcome_of(out)
            different = _differences(found, expected)
        except Exception as error:  # whatever is wrong is an outcome
            different = [f"{type(error).__name__}: {error}"]
        outcome = {
            "run": number,
            "kind": kind,
            "kills": kills,
            "identical": not different,
            "different": different,
            "torn": _torn(out),
            "torn_at_kill": torn_at_kill,
            "lost_or_doubled": _lost_or_doubled(out),
            "left": _left(out),
            "damaged": len([*out.rglob("damaged/*")]),
            "wrong": wrong,
            "seconds": round(time.monotonic() - began, 1),
        }
        if outcome["identical"] and not (wrong or outcome["left"] or outcome["torn"] or outcome["lost_or_doubled"]):
            shutil.rmtree(out)
        return outcome

    def _kill(self, both: list[Process], out: Path, life: float, rng: random.Random) -> dict[str, Any] | None:
        """Kills a run at a random moment, and says which; None if it had ended."""
        victim = rng.choice(both)
        if victim.how == REAL:
            goal = rng.randint(-4, ROUNDS)
            if rng.random() < 0.5:
                victim.wait(rng.uniform(0, life))
                aim = "any time"
            else:
                victim.wait(LONGEST, lambda: max(_rounds(out), default=-5) >= goal, often=0.003)
                time.sleep(rng.uniform(0, 0.1))
                aim = "a checkpoint"
        elif rng.random() < 0.1:
            victim.wait(rng.uniform(0, life / 2))
            aim = "any time"
        else:
            aim, times = rng.choice(self._aims(both, out)), rng.randint(1, 3)
            times = 1 if aim in ONCE else times
            victim.wait(LONGEST, lambda: victim.has_begun(aim, times), often=PROMPT)
            time.sleep(rng.uniform(0, 1.2) * PHASES[aim][1])
        ended = victim.ended() and victim.code == 0
        if not ended:
            victim.kill()
        together = rng.random() < 0.5
        for other in both:
            if other is not victim and (ended or not together):
                other.wait(LONGEST if ended else COMPANION)
            other.kill()
        if ended or victim.code != -9:
            return None
        ends = [other.code for other in both if other is not victim]
        return {"aim": aim, "inside": victim.inside(), "round": max(_rounds(out), default=None), "companion": ends}

    def _aims(self, both: list[Process], out: Path) -> list[str]:
        """The phases that are still to come; those that end a run are rarer."""
        absent = set()
        if both[0].how == QUICK:
            absent |= {"tracing", "compilation", "program cache"}
        if both[0].how == WARM:
            absent |= {"program cache"}
        if max(_rounds(out), default=-1) >= 0 or len(both) > 1 or (out / "cells").exists():
            absent |= {"warm-up"}
        if not (out / "clients.bin").exists():
            absent |= {"clients written"}
        last = {"summary", "tables"} if (out / "cells").exists() else {"summary"}
        early = [name for name in PHASES if name not in {*absent, "summary", "tables"}]
        return [*early, *early, *early, "checkpoint", *last]

    def _complaints(self, both: list[Process], killed: bool) -> list[str]:
        """What processes should not have done."""
        said = (self.folder / "said.txt").read_text(errors="replace")
        right = {0, 4, -9} if killed else {0}
        wrong = [
            f"{process.how} ended with {process.code}: {said[-500:]}" for process in both if process.code not in right
        ]
        return wrong + [f"said: {said[-1500:]}" for word in ("Traceback", "damaged") if word in said]


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _cells(out: Path) -> list[Path]:
    """The run directories: of a grid, those of its cells."""
    return sorted((out / "cells").glob("*")) if (out / "cells").exists() else [out]


def _rounds(out: Path) -> set[int]:
    """The rounds that have a checkpoint."""
    return {round_ for cell in _cells(out) for round_ in rounds_in(cell / "checkpoints")}


def _timeless(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in WALL_CLOCK}


def _lines(cell: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of metrics.jsonl without their wall-clock fields, and the number of lines that are none."""
    records, torn = [], 0
    file = cell / "metrics.jsonl"
    for line in file.read_text().splitlines(keepends=True) if file.exists() else []:
        try:
            records.append(_timeless(json.loads(line)))
            torn += not line.endswith("\n")
        except json.JSONDecodeError:
            torn += 1
    return records, torn


def _torn(out: Path) -> int:
    return sum(_lines(cell)[1] for cell in _cells(out))


def _lost_or_doubled(out: Path) -> int:
    """Records that are missing, double or out of order."""
    wanted = [*range(0, ROUNDS + 1, EVERY)]
    wrong = 0
    for cell in _cells(out):
        rounds = [record["round"] for record in _lines(cell)[0]]
        wrong += len(set(wanted) ^ set(rounds)) + len(rounds) - len(set(rounds)) + (rounds != sorted(rounds))
    return wrong


def _left(out: Path) -> list[str]:
    """Files that are no part of a run."""
    return [str(path.relative_to(out)) for path in out.rglob("*") if path.name.endswith((".part", ".tmp", ".old"))]


def outcome_of(out: Path) -> dict[str, Any]:
    """All that must be the same, by name: files, metrics, summary, and the last state without its wall clock."""
    found: dict[str, Any] = {}
    for cell in _cells(out):
        newest = max(rounds_in(cell / "checkpoints"))
        last, name = cell / "checkpoints" / str(newest), "" if cell == out else f"{cell.name}/"
        found[f"{name}newest"] = newest
        for file in sorted(path for path in cell.iterdir() if path.is_file()):
            found[f"{name}{file.name}"] = None if file.name in UNTOLD else file.read_bytes()
        found[f"{name}metrics"] = _lines(cell)[0]
        found[f"{name}summary"] = _timeless(json.loads((cell / "summary.json").read_text()))
        # Bytes that mark the end of a PNG.
        found[f"{name}curve"] = (cell / "curve.png").read_bytes()[-8:] == b"IEND\xaeB`\x82"
        for part in ("state", "model", "best"):
            for array, values in read_arrays(last / part / FILE).items():
                if array != "log":  # it holds seconds; its records are in metrics.jsonl as well
                    found[f"{name}{part}.{array}"] = (values.dtype.str, values.shape, values.tobytes())
        if (last / "clients" / FILE).exists():
            found[f"{name}clients"] = _client_states(cell, read_arrays(last / "clients" / FILE))
    if out not in _cells(out):
        found |= {name: _columns(out / name) for name in RESULTS_OF_GRID}
        found["files"] = sorted(path.name for path in out.iterdir())
    return found


def _columns(table: Path) -> list[list[str]]:
    """A table without its wall-clock columns."""
    rows = [line.split(",") for line in table.read_text().splitlines()]
    kept = [place for place, name in enumerate(rows[0]) if name not in WALL_CLOCK]
    return [[row[place] for place in kept] for row in rows]


def _client_states(cell: Path, index: dict[str, Any]) -> tuple[bytes, bytes]:
    """Who has a state, and all states, each compared with its checksum."""
    state = read_arrays(cell / "checkpoints" / str(max(rounds_in(cell / "checkpoints"))) / "state" / FILE)
    sizes = (
        array.itemsize * math.prod(array.shape[1:]) for name, array in state.items() if name.startswith("clients.")
    )
    records = FileRecords(cell / "clients.bin", sum(sizes))
    records.load(index, {})
    states = records.read(index["clients"]).tobytes()
    records.close()
    return index["clients"].tobytes(), states


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of what is not as expected."""
    return [name for name in {**found, **expected} if found.get(name, "none") != expected.get(name, "none")]


def summary_of(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures."""
    kills = [kill | {"kind": outcome["kind"]} for outcome in outcomes for kill in outcome["kills"]]
    inside = Counter(phase for kill in kills for phase in kill["inside"])
    companions = Counter(code for kill in kills for code in kill["companion"])
    return {
        "kills": len(kills),
        "runs": len(outcomes),
        "identical": sum(outcome["identical"] for outcome in outcomes),
        "torn_lines": sum(outcome["torn"] for outcome in outcomes),
        "torn_lines_at_kill": sum(outcome["torn_at_kill"] for outcome in outcomes),
        "lost_or_doubled_records": sum(outcome["lost_or_doubled"] for outcome in outcomes),
        "left_files": sum(len(outcome["left"]) for outcome in outcomes),
        "damaged_checkpoints": sum(outcome["damaged"] for outcome in outcomes),
        "wrong_ends": sum(len(outcome["wrong"]) for outcome in outcomes),
        "runs_by_kind": dict(Counter(outcome["kind"] for outcome in outcomes)),
        "kills_by_kind": dict(Counter(kill["kind"] for kill in kills)),
        "kills_by_start": dict(Counter(kill["how"] for kill in kills)),
        "kills_before_first_checkpoint": sum(kill["round"] is None for kill in kills),
        "kills_in_warm_up": sum(kill["round"] is not None and kill["round"] < 0 for kill in kills),
        "kills_inside": {phase: inside[phase] for phase in PHASES},
        "companions_exit_4": companions[4],
        "companions_killed_too": companions[-9],
        "minutes": round(sum(outcome["seconds"] for outcome in outcomes) / 60, 1),
    }


def soak(folder: Path, *, kills: int, seed: int = 0) -> list[dict[str, Any]]:
    """Kills runs until there are so many kills, those of earlier calls with this folder included."""
    # One device for each process, and programs that compile quickly.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    here = Soak(folder)
    outcomes = here.outcomes()
    while (left := kills - sum(len(outcome["kills"]) for outcome in outcomes)) > 0:
        outcome = here.kill_and_resume(1 + max((each["run"] for each in outcomes), default=-1), seed=seed, most=left)
        with here.state.open("a") as file:
            file.write(json.dumps(outcome) + "\n")
        outcomes.append(outcome)
        done = sum(len(each["kills"]) for each in outcomes)
        at = ", ".join("/".join(kill["inside"]) or kill["aim"] for kill in outcome["kills"])
        good = "as left alone" if outcome["identical"] else f"different: {outcome['different']}"
        print(f"{done:>5} kills  run {outcome['run']:>3} {outcome['kind']:<6} {good}  ({at})", flush=True)
        for wrong in outcome["wrong"]:
            print(f"       wrong: {wrong}", flush=True)
    return outcomes


def main() -> None:
    """Soaks, prints the figures and publishes them."""
    from common import publish

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills in all (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="for runs and state; give it again to continue")
    parser.add_argument("--figures", action="store_true", help="only publish what the folder's state says so far")
    parser.add_argument("--print", action="store_true", help="only print the figures, in the last line")
    arguments = parser.parse_args()
    if arguments.figures:
        outcomes = Soak(arguments.folder).outcomes()
    else:
        prepare()
        outcomes = soak(arguments.folder, kills=arguments.kills, seed=arguments.seed)
    figures = summary_of(outcomes)
    print(json.dumps(figures)) if arguments.print else publish("soak", figures)


if __name__ == "__main__":
    sys.exit(main())
