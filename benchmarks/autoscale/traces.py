"""The traces: when requests arrive, and how long each of them runs."""

from __future__ import annotations

import csv
import gzip
import math
import random
from dataclasses import dataclass
from pathlib import Path

TRACES = Path(__file__).parents[1] / "data" / "traces"
VARIATION = 0.6
"""Of service times: standard deviation over mean."""


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """A trace and the workload that is imagined to serve it.

    Attributes:
        concurrency: Requests that one replica serves at a time.
        service_seconds: How long one runs on average.
        bin_seconds: What a line of the file counts; arrivals are spread over it.
    """

    name: str
    concurrency: int
    service_seconds: float
    bin_seconds: float = 1.0


SPECS = (
    TraceSpec("azure_llm_code_2023", 16, 3),
    TraceSpec("azure_llm_conv_2023", 16, 8),
    TraceSpec("mooncake_conversation", 16, 10, bin_seconds=3),
    TraceSpec("nab_aws_elb", 4, 10, bin_seconds=300),
    TraceSpec("servegen_mid91", 4, 15),
    TraceSpec("servegen_r1_62", 8, 30),
)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of arrival, in seconds from the beginning."""

    spec: TraceSpec
    arrivals: tuple[float, ...]
    services: tuple[float, ...]

    @property
    def end(self) -> float:
        """Return when the last bin is over."""
        return math.floor(self.arrivals[-1] / self.spec.bin_seconds + 1) * self.spec.bin_seconds


def load_trace(spec: TraceSpec, seed: int = 1) -> Trace:
    """Return a trace with the same arrivals and services whoever serves them."""
    drawn = random.Random(f"{spec.name} {seed}")
    arrivals = sorted(
        begin + drawn.random() * spec.bin_seconds
        for begin, count in _bins(TRACES / f"{spec.name}.csv.gz")
        for _ in range(count)
    )
    sigma = math.sqrt(math.log(1 + VARIATION**2))
    mu = math.log(spec.service_seconds) - sigma**2 / 2
    services = tuple(drawn.lognormvariate(mu, sigma) for _ in arrivals)
    return Trace(spec, tuple(arrivals), services)


def _bins(path: Path) -> list[tuple[float, int]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        return [(float(row["t_seconds"]), int(row["requests"])) for row in csv.DictReader(lines)]
