"""Compare autoscalers: `python -m benchmarks.autoscale [TRACE ...] [--seed N] [--write-docs]`.

Prints a table a trace, and who is better than whom. `--write-docs` puts the tables into
docs/autoscaling.md and draws the pictures beside it, for which matplotlib must be installed;
`--plots FOLDER` draws them elsewhere. The exit status is 3 if an autoscaler dominates a preset.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.autoscale.bounds import Bounds, bounds
from benchmarks.autoscale.others import (
    Dstack,
    Fixed,
    Hpa,
    Keda,
    Knative,
    Literal,
    RayServe,
    SkyServe,
)
from benchmarks.autoscale.plots import draw_costs, draw_replicas
from benchmarks.autoscale.results import Result, dominance_table, result_of, trace_table
from benchmarks.autoscale.shipped import documented, preset
from benchmarks.autoscale.traces import SPECS, TraceSpec, load_trace
from benchmarks.autoscale.world import Policy, Rules, World
from benchmarks.figures import with_results
from garrison.models.autoscale import AutoscalePreset

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "autoscaling.md"
PRESET_NAMES = tuple(str(one) for one in AutoscalePreset)
RIVALS = ("knative-kpa", "keda+hpa", "ray-serve", "skyserve", "dstack")
DRAWN = (*PRESET_NAMES, "knative-kpa", "keda+hpa", "skyserve")


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that came of one trace."""

    spec: TraceSpec
    bound: Bounds
    results: tuple[Result, ...]
    targets: dict[str, list[tuple[float, int]]]


def main() -> int:
    """Run what was asked for."""
    options = _options()
    specs = [spec for spec in SPECS if not options.traces or spec.name in options.traces]
    outcomes: list[Outcome] = []
    parts: list[str] = []
    with ProcessPoolExecutor(max_workers=options.jobs) as pool:
        for outcome in pool.map(measure, specs, [options.seed] * len(specs)):
            outcomes.append(outcome)
            parts.append(_section(outcome))
            _say(f"{parts[-1]}\n")
    results = [one for outcome in outcomes for one in outcome.results]
    verdict, losses = _verdict(results)
    _say(verdict)
    if options.json:
        found = [one.as_json() for one in results]
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.plots:
        _draw(options.plots, outcomes, options.seed)
    if options.write_docs:
        _draw(DOCS / "images", outcomes, options.seed)
        text = "\n\n".join(["", verdict, *parts, ""])
        page = with_results(PAGE.read_text(encoding="utf-8"), text)
        PAGE.write_text(page, encoding="utf-8")
    return 3 if losses else 0


def policies(spec: TraceSpec) -> list[Policy]:
    """Return all that are compared, each new."""
    slots, seconds = spec.concurrency, spec.service_seconds
    return [
        Fixed(1),
        Fixed(5),
        Knative(slots),
        Keda(slots),
        Hpa(slots),
        SkyServe(slots, seconds),
        Dstack(slots, seconds),
        RayServe(slots),
        Literal(slots),
        Literal(slots, wake=True),
        documented(slots),
        *(preset(one, slots) for one in AutoscalePreset),
    ]


def measure(spec: TraceSpec, seed: int) -> Outcome:
    """Return how every policy does on one trace."""
    trace = load_trace(spec, seed)
    bound = bounds(trace, Rules())
    results, targets = [], {}
    for policy in policies(spec):
        world = World(trace)
        world.run(policy)
        results.append(result_of(policy.name, world))
        if policy.name in DRAWN:
            targets[policy.name] = world.targets
    return Outcome(spec, bound, tuple(results), targets)


def _section(outcome: Outcome) -> str:
    spec, bound = outcome.spec, outcome.bound
    title = (
        f"**{spec.name}**: {spec.concurrency} requests a replica at a time,"
        f" {spec.service_seconds:g} s each; the work is {bound.work_hours:.1f} replica-hours,"
        f" serving it without any waiting {bound.opt_hours:.1f}."
    )
    return f"{title}\n\n{trace_table(outcome.results, bound)}"


def _verdict(results: Sequence[Result]) -> tuple[str, int]:
    rows, counts = dominance_table(results, PRESET_NAMES, RIVALS)
    said = (
        f"{counts['dominated']} of {counts['pairs']} pairs of trace and autoscaler are dominated by"
        f" a preset (no worse in cost, requests over 10 s and mean wait, better in one);"
        f" {counts['losses']} presets are dominated."
    )
    literal, ours = (
        {one.trace: one for one in results if one.policy == name}
        for name in ("literal", "garrison 300/300/300/1800")
    )
    better = [trace for trace in ours if ours[trace].dominates(literal[trace])]
    documented_said = (
        f"With the documented knobs, 300/300/300/1800, the decision dominates their literal reading"
        f" on {len(better)} of {len(ours)} traces."
    )
    return f"{said}\n\n{rows}\n\n{documented_said}", counts["losses"]


def _draw(folder: Path, outcomes: Sequence[Outcome], seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        trace = load_trace(outcome.spec, seed)
        ordered = {name: outcome.targets[name] for name in DRAWN}
        draw_replicas(folder / f"autoscaling-{outcome.spec.name}.png", trace, ordered)
    results = [one for outcome in outcomes for one in outcome.results]
    draw_costs(folder / "autoscaling-costs.png", results, (*PRESET_NAMES, *RIVALS))


def _options() -> argparse.Namespace:
    names = [spec.name for spec in SPECS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=__doc__)
    parser.add_argument("traces", nargs="*", metavar="TRACE", help=f"which: {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals in a bin and of services")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw pictures there")
    parser.add_argument("--write-docs", action="store_true", help="tables and pictures into docs/")
    options = parser.parse_args()
    if unknown := set(options.traces) - set(names):
        parser.error(f"there is no trace {', '.join(sorted(unknown))}")
    return options


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
