"""Do the tests notice mistakes? `python -m tests.mutants.run [--tier fast|full] [--workers N] [--out FILE] [NAME ...]`

Mutation testing with the mistakes of `table.py`. Each is made in a copy of the checkout; the tests that its row names are run
there until one fails, which kills it. Where they all pass, the whole fast tier is run, and with `--tier full` the full tier
too; what passes that survives. A mutant without a killer is either a gap in the tests or no mistake at all.

A test that fails kills nothing unless it passes in an unchanged copy, which is tried at once. Results are JSON lines in FILE;
with the same FILE, what was run with the same row, tier and code is not run again. At the end a Markdown table of all of them is
printed. The exit status is 0, 1 where a mutant survived, and 2 where nothing can be said of one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal

from tests.mutants.table import MUTANTS, Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("reference_impls", "suite", "slurm", "report", "bandwise")
OWN: Final = "tests/mutants"
"""These files: not run against mutants, which would always fail them, and not part of the code that results are of."""
FAST: Final = ("-m", "not full and not system")
FULL: Final = ("-m", "full or system", "--ignore=tests/bench")
HINTS_S: Final = 900
"""Seconds after which tests of a mutant count as failed: an endless loop is noticed too."""
TIER_S: Final = 4 * 3600
TOO_LONG: Final = "(too long)"
"""In place of the test that failed, where none did within those seconds."""

Tier = Literal["hints", "fast", "full"]


class MutationError(RuntimeError):
    """Nothing can be said of a mutant: its text is not in the sources once, or its tests do not run."""


def sources(root: Path) -> list[Path]:
    """The Python files of the packages."""
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


def place(mutant: Mutant, texts: Mapping[Path, str]) -> Path:
    """The file that a mutant changes.

    Args:
        mutant: The mutant.
        texts: Every source file with its text.

    Raises:
        MutationError: Its text occurs nowhere, or more than once.
    """
    counts = {path: text.count(mutant.old) for path, text in texts.items() if mutant.old in text}
    if sum(counts.values()) != 1:
        where = ", ".join(f"{path} ({count} times)" for path, count in counts.items()) or "no source"
        raise MutationError(
            f"the text of mutant {mutant.name} must occur exactly once and is in {where}: give its row in {OWN}/table.py the "
            f"expression as it is now, or a longer piece of it\n{mutant.old}"
        )
    return next(iter(counts))


def mutated(mutant: Mutant, text: str) -> str:
    """The source with the mistake, which still parses.

    Raises:
        MutationError: It does not parse.
    """
    changed = text.replace(mutant.old, mutant.new)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise MutationError(f"mutant {mutant.name} does not parse: {error}") from None
    return changed


def hinted(mutants: Iterable[Mutant], root: Path) -> list[str]:
    """The test files and folders that these mutants name, relative to the checkout.

    Raises:
        MutationError: A pattern matches nothing.
    """
    found: set[str] = set()
    for mutant in mutants:
        for pattern in mutant.tests:
            matches = {path.relative_to(root).as_posix() for path in root.glob(pattern)}
            if not matches:
                raise MutationError(
                    f"mutant {mutant.name}: no test matches {pattern!r}; name one that should notice"
                )
            found |= matches
    return sorted(found)


# Copies of the checkout


def checkout_files(root: Path) -> list[str]:
    """What git keeps or would keep: all that a copy needs, and nothing that was made here."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted(name for name in listed if name and (root / name).is_file())


def code_of(root: Path) -> str:
    """Identity of code and tests, the mutants themselves left out."""
    told = hashlib.sha256()
    for name in checkout_files(root):
        if not name.startswith(f"{OWN}/"):
            told.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return told.hexdigest()[:16]


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A clone of the checkout with what is not committed, as long as it is wanted."""
    with tempfile.TemporaryDirectory(prefix="bandwise-mutants-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "checkout"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(root), str(copy)], check=True)
        kept = set(checkout_files(root))
        for name in set(checkout_files(copy)) - kept:
            (copy / name).unlink()
        for name in kept:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
        yield copy


@contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """Another text in a file, for the time of the block."""
    before = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    ).stdout


# Running tests


@dataclass(frozen=True)
class Run:
    """What some tests said.

    Args:
        failed: Id of the first test that failed; empty where all passed.
        seconds: How long they took.
    """

    failed: str
    seconds: float


def tests_in(copy: Path, arguments: Sequence[str], *, compiled: bool, limit_s: float) -> Run:
    """Run tests in a copy until one fails.

    Args:
        copy: The copy.
        arguments: What pytest is given besides.
        compiled: Whether codecs are compiled.
        limit_s: Seconds; what takes longer has failed.

    Raises:
        MutationError: pytest did not come to run a test.
    """
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("BANDWISE_COMPILE", None)
    if not compiled:
        environment["BANDWISE_COMPILE"] = "0"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "--benchmark-disable",
    ]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, f"--ignore={OWN}", *arguments],
        cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Run(TOO_LONG, time.monotonic() - started)
    finally:
        _end(process)
    seconds = time.monotonic() - started
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if process.returncode == 0:
        return Run("", seconds)
    if failed is not None:
        return Run(failed[1], seconds)
    raise MutationError(f"pytest {' '.join(arguments)} ended with {process.returncode}:\n{output[-2000:]}")


def _end(process: subprocess.Popen[str]) -> None:
    """End what the tests have started, should something of it still run."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def stages(mutant: Mutant, tier: Tier, root: Path) -> Iterator[tuple[Tier, list[str], float]]:
    """What is run against a mutant, until something fails: tier, arguments, limit in seconds."""
    yield "hints", [*FAST, *hinted([mutant], root)], HINTS_S
    if tier != "hints":
        yield "fast", [*FAST, "tests"], TIER_S
    if tier == "full":
        yield "full", [*FULL, "tests"], TIER_S


def judge(mutant: Mutant, copy: Path, tier: Tier, passes: Passes) -> dict[str, Any]:
    """Whether a mutant is killed, by which test, of which tier.

    Args:
        mutant: The mutant.
        copy: A copy of the checkout; it is as before afterwards.
        tier: How far to go.
        passes: What is known of tests without a mistake.

    Raises:
        MutationError: It cannot be made, or what failed fails without it too.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in sources(copy)}
    path = place(mutant, texts)
    seconds = 0.0
    found = {"killed_by": "", "tier": "", "package": path.relative_to(copy).parts[0]}
    for stage, arguments, limit_s in stages(mutant, tier, copy):
        with changed(path, mutated(mutant, texts[path])):
            run = tests_in(copy, arguments, compiled=mutant.compiled, limit_s=limit_s)
        seconds += run.seconds
        if run.failed:
            alone = arguments if run.failed == TOO_LONG else [run.failed]
            passes(copy, alone, compiled=mutant.compiled, limit_s=limit_s)
            found |= {"killed_by": run.failed, "tier": stage}
            break
    return {**found, "seconds": round(seconds, 1)}


class Passes:
    """That tests pass without a mistake; what has passed once is not asked again."""

    def __init__(self) -> None:
        self._known: set[tuple[str, ...]] = set()

    def __call__(self, copy: Path, arguments: Sequence[str], *, compiled: bool, limit_s: float) -> None:
        """Refuse tests that fail in an unchanged copy.

        Raises:
            MutationError: One fails.
        """
        key = (*arguments, str(compiled))
        if key in self._known:
            return
        if failed := tests_in(copy, arguments, compiled=compiled, limit_s=limit_s).failed:
            raise MutationError(
                f"{failed} fails without any mistake in the code, so it can kill no mutant: mend it first"
            )
        self._known.add(key)


# Records


def identity(mutant: Mutant, tier: Tier, code: str) -> dict[str, Any]:
    """What a result is of: row, tier and code."""
    return {"mutant": json.loads(json.dumps(asdict(mutant))), "asked": tier, "code": code}


def known(out: Path, chosen: Sequence[Mutant], tier: Tier, code: str) -> dict[str, dict[str, Any]]:
    """Results by name that are there already, of the same rows, tier and code."""
    wanted = {mutant.name: identity(mutant, tier, code) for mutant in chosen}
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    found = {}
    for record in map(json.loads, lines):
        name = record["mutant"]["name"]
        if name in wanted and {key: record[key] for key in wanted[name]} == wanted[name]:
            found[name] = record
    return found


def table(records: Iterable[Mapping[str, Any]]) -> str:
    """The results in Markdown, a row a mutant."""
    lines = [
        "| mutant | kind | package | killed by | tier | s |",
        "|---|---|---|---|---|---|",
    ]
    for record in records:
        mutant = record["mutant"]
        killer = f"`{record['killed_by'].removeprefix('tests/')}`" if record["killed_by"] else "**survives**"
        cells = (
            mutant["name"],
            mutant["kind"],
            record["package"],
            killer,
            record["tier"],
            f"{record['seconds']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants; 0, 1 where one survived, 2 where nothing can be said of one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.run", description="Do the tests notice mistakes?"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; default: all")
    parser.add_argument(
        "--tier", choices=("hints", "fast", "full"), default="fast",
        help="how far to go with a mutant that the tests of its row leave alive (default: the fast tier)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="copies that are tested at a time"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("mutants.jsonl"), help="results, a JSON line a mutant"
    )
    args = parser.parse_args(arguments)
    if unknown := set(args.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no mutant {', '.join(sorted(unknown))}; they stand in {OWN}/table.py")
    chosen = [mutant for mutant in MUTANTS if mutant.name in args.names or not args.names]
    code = code_of(ROOT)
    commit = _git(ROOT, "rev-parse", "HEAD").strip()
    records = known(args.out, chosen, args.tier, code)
    waiting = [mutant for mutant in chosen if mutant.name not in records]
    problems = []
    for mutant, result in _judged(waiting, args.tier, args.workers):
        if isinstance(result, MutationError):
            problems.append(f"{mutant.name}: {result}")
            sys.stderr.write(f"{problems[-1]}\n")
            continue
        record = {**identity(mutant, args.tier, code), "commit": commit, **result}
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        records[mutant.name] = record
        word = record["killed_by"] or "survives"
        sys.stderr.write(f"{len(records)} of {len(chosen)}: {mutant.name}: {word} ({record['seconds']} s)\n")
    ordered = [records[mutant.name] for mutant in chosen if mutant.name in records]
    killed = sum(bool(record["killed_by"]) for record in ordered)
    sys.stdout.write(f"{table(ordered)}\n\n{killed} of {len(chosen)} killed\n")
    for problem in problems:
        sys.stdout.write(f"\nNot judged: {problem}\n")
    return 2 if problems else 0 if killed == len(chosen) else 1


def _judged(
    mutants: Sequence[Mutant], tier: Tier, workers: int
) -> Iterator[tuple[Mutant, dict[str, Any] | MutationError]]:
    """Mutants with their results, or why there is none, as they come; so many copies are tested at a time."""
    passes, free = Passes(), SimpleQueue[Path]()

    def one(mutant: Mutant) -> tuple[Mutant, dict[str, Any] | MutationError]:
        copy = free.get()
        try:
            return mutant, judge(mutant, copy, tier, passes)
        except MutationError as error:
            return mutant, error
        finally:
            free.put(copy)

    with ExitStack() as copies, ThreadPoolExecutor(workers) as pool:
        for _ in range(min(workers, len(mutants))):
            free.put(copies.enter_context(copied(ROOT)))
        try:
            for future in as_completed([pool.submit(one, mutant) for mutant in mutants]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())
