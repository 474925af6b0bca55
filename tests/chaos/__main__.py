"""`python -m tests.chaos --runs N`: prints a line for each run and a table at the end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from temporalio.service import RPCError

from tests.chaos.elastic_plan import make_elastic_plan
from tests.chaos.elastic_run import run_elastic_plan
from tests.chaos.judge import Kind, Violation
from tests.chaos.nursery import Nursery
from tests.chaos.plan import make_plan
from tests.chaos.run import Result, run_plan
from tests.chaos.sabotage import SABOTAGES

HEAD = (
    f"{'seed':>10} {'clusters':>8} {'kills':>5} {'server':>6} {'faults':>6} {'seconds':>7}  verdict"
)


def main() -> int:
    """Return 0 if every promise was kept in every run."""
    options = _options()
    first = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    with contextlib.suppress(KeyboardInterrupt):
        results = asyncio.run(_runs(first, options))
        _say(_table(results))
        return int(any(result.violations for result in results))
    return 130


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=1, metavar="N")
    parser.add_argument("--seed", type=int, help="of the first run; the others count on from it")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--keep", action="store_true", help="keep the folders of good runs too")
    parser.add_argument(
        "--elastic", action="store_true", help="nodepools and deployments instead of clusters"
    )
    parser.add_argument("--break", dest="sabotage", choices=sorted(SABOTAGES))
    return parser.parse_args()


async def _runs(first: int, options: argparse.Namespace) -> list[Result]:
    _say(HEAD)
    asyncio.get_running_loop().set_exception_handler(_pass_over)
    places = asyncio.Semaphore(options.jobs)
    async with Nursery.open() as nursery:

        async def run(seed: int) -> Result:
            async with places:
                return await _run(seed, nursery, options)

        return await asyncio.gather(*(run(first + number) for number in range(options.runs)))


def _pass_over(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing of the SDK's own futures, whose error reached who called."""
    if not isinstance(context.get("exception"), RPCError):
        loop.default_exception_handler(context)


async def _run(seed: int, nursery: Nursery, options: argparse.Namespace) -> Result:
    folder = Path(tempfile.mkdtemp(prefix=f"garrison-chaos-{seed}-"))
    try:
        result = await _result(seed, folder, nursery, options)
    except Exception as error:  # a harness that fails proves nothing, and must say so
        text = "".join(traceback.format_exception(error))
        broken = Violation(Kind.OTHER, f"the harness failed:\n{text}")
        result = Result(seed, 0, 0, 0, 0, 0.0, (broken,))
    except asyncio.CancelledError:
        shutil.rmtree(folder)
        raise
    _say(_line(result))
    for violation in result.violations:
        _say(f"{'':>10} {violation.kind}: {violation.what}")
    if result.violations or options.keep:
        _say(f"{'':>10} logs and files: {folder}")
    else:
        shutil.rmtree(folder)
    return result


async def _result(seed: int, folder: Path, nursery: Nursery, options: argparse.Namespace) -> Result:
    if options.elastic:
        plan = make_elastic_plan(seed)
        return await run_elastic_plan(plan, folder, nursery, sabotage=options.sabotage)
    return await run_plan(make_plan(seed), folder, nursery, sabotage=options.sabotage)


def _line(result: Result) -> str:
    kinds = dict.fromkeys(violation.kind for violation in result.violations)
    return (
        f"{result.seed:>10} {result.clusters:>8} {result.worker_kills:>5}"
        f" {result.server_kills:>6} {result.faults:>6} {result.seconds:>7.1f}"
        f"  {', '.join(kinds) or 'kept'}"
    )


def _table(results: list[Result]) -> str:
    rows = [
        ("runs", len(results)),
        ("clusters", sum(result.clusters for result in results)),
        ("worker kills", sum(result.worker_kills for result in results)),
        ("server kills", sum(result.server_kills for result in results)),
        ("faults", sum(result.faults for result in results)),
        *((f"{kind}s", sum(result.count(kind) for result in results)) for kind in Kind),
    ]
    return "\n".join(["", *(f"{name:<22} {number:>6}" for name, number in rows)])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
