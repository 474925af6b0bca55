"""Run benchmarks: `python -m benchmarks [NAME ...] [--quick] [--json FILE] [--write-readme]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    elastic,
    followed,
    idle,
    lifecycles,
    machine,
    recovery,
    restarts,
    router,
    termination,
    updates,
)
from benchmarks.figures import Figure, markdown, with_results

README = Path(__file__).parent / "README.md"
FLEET = 1_000
NODES = 10

Say = Callable[[str], None]
Benchmark = Callable[[argparse.Namespace, Say], Awaitable[list[Figure]]]


def _lifecycles(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    size = {"rounds": 2, "lives": 36} if options.quick else {"rounds": 4, "lives": 60}
    return lifecycles.measure(**size, say=say)


def _updates(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    return updates.measure(blocks=4 if options.quick else 16, updates=25, say=say)


def _recovery(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    return recovery.measure(samples=2 if options.quick else 24, say=say)


def _restarts(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    size = (10, 20) if options.quick else (100, 250)
    return restarts.measure(after_term=size[0], after_kill=size[1], say=say)


def _termination(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    return termination.measure(fleets=(8, 16) if options.quick else (125, 250, 500), say=say)


def _idle(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    return idle.measure(
        clusters=options.fleet or (20 if options.quick else FLEET),
        nodes=options.nodes,
        settle=5 if options.quick else 120,
        window=15 if options.quick else 60,
        say=say,
    )


def _elastic(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    size = elastic.Size(2, 6) if options.quick else elastic.Size(20, 200)
    settle, window = (5, 15) if options.quick else (120, 60)
    return elastic.measure(size=size, settle=settle, window=window, say=say)


def _followed(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    settle, window = (5, 15) if options.quick else (120, 60)
    count = 20 if options.quick else 500
    return followed.measure(deployments=count, settle=settle, window=window, say=say)


def _router(options: argparse.Namespace, say: Say) -> Awaitable[list[Figure]]:
    return router.measure(requests=64 if options.quick else 960, say=say)


BENCHMARKS: Mapping[str, Benchmark] = {
    "lifecycles": _lifecycles,
    "updates": _updates,
    "recovery": _recovery,
    "restarts": _restarts,
    "termination": _termination,
    "idle": _idle,
    "elastic": _elastic,
    "followed": _followed,
    "router": _router,
}


def main() -> int:
    """Run what was asked for; 0 if every goal was met, 3 if one was missed."""
    options = _options()
    # Ended by a signal, it takes its servers and workers with it all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    described = machine.describe()
    began = datetime.now(UTC)
    figures = [one for name in options.names for one in _run(name, options)]
    table = markdown(figures)
    _say(table)
    if options.json:
        found = [one.as_json() for one in figures]
        report = {"machine": described, "began_at": began.isoformat(), "figures": found}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.write_readme:
        text = README.read_text(encoding="utf-8")
        README.write_text(with_results(text, _results(described, began, table)), encoding="utf-8")
    return 3 if any(one.met is False for one in figures) else 0


def _run(name: str, options: argparse.Namespace) -> list[Figure]:
    _say(f"== {name}")
    began = time.monotonic()
    figures = asyncio.run(_awaited(BENCHMARKS[name](options, _say)))
    _say(f"   {time.monotonic() - began:.0f} s")
    return figures


async def _awaited(work: Awaitable[list[Figure]]) -> list[Figure]:
    return await work


def _results(described: Mapping[str, str], began: datetime, table: str) -> str:
    where = "; ".join(f"{what}: {said}" for what, said in described.items())
    return f"\nMeasured on {began:%Y-%m-%d}. {where}.\n\n{table}\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--fleet", type=int, help=f"clusters of the idle fleet ({FLEET})")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"nodes of each ({NODES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--write-readme", action="store_true", help=f"put the table in {README.name}"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    options.names = options.names or list(BENCHMARKS)
    return options


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
