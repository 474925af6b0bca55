"""What a Prometheus server is asked, and what its answers say; nothing here talks to one.

One question tells all numbers of up to `MAX_DEPLOYMENTS` deployments with the same kind of server,
in one evaluation, so that no scrape comes between them. Each number is asked for together with the
age of its sample: an instant query otherwise finds what a target without staleness marks (one that
sets its own timestamps, or comes by federation) said up to five minutes ago.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from garrison.domain.autoscaling.series import Role, Sample
from garrison.load.presets import PRESETS, Named, ServerMetrics, assign_roles
from garrison.load.reading import Reading
from garrison.models.deployment import LoadPreset, ReplicaState
from garrison.models.load import Followed

MAX_AGE_SECONDS = 60
"""Of a sample, and between the server's clock and ours."""
MAX_DEPLOYMENTS = 50
"""In one question, which would be too long else."""
METRIC = "garrison_metric"
"""A label of our own: the name of the metric, which operators on several metrics take away."""
QUERY_ROLES = (Role.RUNNING, Role.QUEUED, Role.ARRIVALS, Role.COMPLETIONS)
"""Fields of `LoadQueries` that are numbers of requests."""

_NUMBER = re.compile(r"NaN|[+-]?Inf|[+-]?[0-9.]{1,400}(e[+-]?[0-9]{1,4})?")
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True)
class Row:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said to one question.

    Attributes:
        failure: Why it is no answer, in words; None when it is one.
        of_server: The server is to blame, not the question: others fare no better.
    """

    rows: tuple[Row, ...] = ()
    failure: str | None = None
    of_server: bool = False
    _by_label: dict[str, dict[str, list[Row]]] = field(default_factory=dict, compare=False)

    def where(self, label: str, value: str) -> Sequence[Row]:
        """Return the series whose label has a value; quick, however many deployments ask."""
        rows = self._by_label.get(label)
        if rows is None:
            rows = self._by_label[label] = {}
            for row in self.rows:
                rows.setdefault(row.labels.get(label, ""), []).append(row)
        return rows.get(value, ())


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions whose answers tell a deployment's load.

    Attributes:
        preset: The one for the numbers that its kind of server tells, None without a preset.
        up: The one for how many targets its job has, None without a job.
        own: Its own, by field of `LoadQueries`.
    """

    preset: str | None = None
    up: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)

    def all(self) -> tuple[str, ...]:
        """Return all questions."""
        return tuple(one for one in (self.preset, self.up, *self.own.values()) if one is not None)


def plan_questions(followed: Sequence[Followed]) -> dict[str, Asked]:
    """Return what to ask for the load of each deployment, by id; as few questions as can be."""
    presets = _preset_questions(followed)
    ups = _up_questions(followed)
    return {
        one.id: Asked(
            preset=presets.get(one.id),
            up=ups.get(one.autoscale.load.job or ""),
            own=one.autoscale.load.queries.model_dump(exclude_none=True),
        )
        for one in followed
    }


def ask_for(metrics: ServerMetrics, models: Sequence[str], jobs: Sequence[str]) -> str:
    """Return the question for all numbers of one kind of server.

    Args:
        metrics: How the server names them.
        models: Values of its label for models, empty for all.
        jobs: Values of the label `job`, empty for all.
    """
    matchers = [_matcher("job", jobs)] if jobs else []
    if models and metrics.label is not None:
        matchers.append(_matcher(metrics.label, models))
    return " or ".join(
        f'label_replace({_recent(name, matchers)}, "{METRIC}", {quote(name)}, "", "")'
        for name in metrics.all_names()
    )


def ask_for_targets(jobs: Sequence[str]) -> str:
    """Return the question for the targets of some jobs that the server can scrape."""
    return f"{_recent('up', [_matcher('job', jobs)])} == 1"


def quote(text: str) -> str:
    """Return a PromQL string that is the text, whatever is in it."""
    # PromQL's strings are Go's, in which all that JSON escapes is escaped the same way.
    return json.dumps(text, ensure_ascii=False)


def read_answer(body: bytes, now: float) -> Answer:
    """Return what an answer to an instant query says.

    Args:
        body: As received, of an answer with status 200.
        now: Our clock, in seconds since the epoch.
    """
    try:
        return Answer(rows=_rows(json.loads(body), now))
    except _UnusableError as error:
        return Answer(failure=str(error), of_server=error.of_server)
    except (ValueError, RecursionError):
        return Answer(failure="the answer is no JSON", of_server=True)


def read_refusal(body: bytes) -> str:
    """Return what a refusal says, empty when nothing can be read in it."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    error = said.get("error") if isinstance(said, dict) else None
    return error if isinstance(error, str) else ""


def read_load(one: Followed, asked: Asked, answers: Mapping[str, Answer]) -> Reading:
    """Return what the answers say of one deployment."""
    failed = next((answers[it] for it in asked.all() if answers[it].failure is not None), None)
    if failed is not None:
        return Reading(missing=failed.failure, said=failed.of_server)
    own = {name: answers[question].rows for name, question in asked.own.items()}
    empty = next((name for name in ("arrivals", "up") if name in own and not own[name]), None)
    if empty is not None:
        return Reading(missing=f"queries.{empty} has an empty answer")
    rows: Sequence[Row] = () if asked.preset is None else _rows_of(one, answers[asked.preset])
    if one.autoscale.load.job is None and _is_scraped_twice(rows):
        return Reading(missing="replicas are scraped by several jobs; name one in `load.job`")
    unscraped = _unscraped(one, rows)
    if unscraped is not None:
        return Reading(missing=f"ready replica {unscraped} is not scraped")
    look = _preset_look(one, rows)
    for role in QUERY_ROLES:
        if role in own:
            look[role] = [_sample(row) for row in own[role]]
    if Role.RUNNING in own:
        look.pop(Role.BUSY_US, None)
    if Role.COMPLETIONS in own and not own[Role.COMPLETIONS]:
        del look[Role.COMPLETIONS]
    return Reading(look=look, up=_up(one, asked, own, answers))


def _preset_questions(followed: Sequence[Followed]) -> dict[str, str]:
    groups: dict[tuple[LoadPreset, bool, bool], list[Followed]] = {}
    for one in followed:
        load = one.autoscale.load
        if load.preset is not None:
            kind = (load.preset, load.model is not None, load.job is not None)
            groups.setdefault(kind, []).append(one)
    questions: dict[str, str] = {}
    for (preset, _, _), ones in groups.items():
        for at in range(0, len(ones), MAX_DEPLOYMENTS):
            some = ones[at : at + MAX_DEPLOYMENTS]
            loads = [one.autoscale.load for one in some]
            models = sorted({load.model for load in loads if load.model is not None})
            jobs = sorted({load.job for load in loads if load.job is not None})
            question = ask_for(PRESETS[preset], models, jobs)
            questions |= {one.id: question for one in some}
    return questions


def _up_questions(followed: Sequence[Followed]) -> dict[str, str]:
    loads = [one.autoscale.load for one in followed]
    jobs = sorted({load.job for load in loads if load.job is not None and load.queries.up is None})
    some = [jobs[at : at + MAX_DEPLOYMENTS] for at in range(0, len(jobs), MAX_DEPLOYMENTS)]
    return {job: ask_for_targets(asked) for asked in some for job in asked}


def _recent(metric: str, matchers: Sequence[str]) -> str:
    selector = f"{metric}{{{','.join(matchers)}}}"
    return f"({selector} and (timestamp({selector}) > time() - {MAX_AGE_SECONDS}))"


def _matcher(label: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{label}={quote(values[0])}"
    pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", value) for value in values)
    return f"{label}=~{quote(pattern)}"


class _UnusableError(Exception):
    """Says why an answer is none."""

    def __init__(self, why: str, *, of_server: bool = False) -> None:
        super().__init__(why)
        self.of_server = of_server


def _rows(said: Any, now: float) -> tuple[Row, ...]:
    if not isinstance(said, dict) or said.get("status") != "success":
        raise _UnusableError("the answer is not a Prometheus server's", of_server=True)
    if said.get("warnings"):
        # Of a server that stands for several: some of them have not answered.
        raise _UnusableError(f"the answer has warnings: {said['warnings']}")
    data = said.get("data")
    data = data if isinstance(data, dict) else {}
    kind, result = data.get("resultType"), data.get("result")
    if kind == "scalar":
        return (Row({}, _value(result, now)),)
    if kind != "vector":
        raise _UnusableError(f"the answer is a {kind}, not a vector of numbers")
    if not isinstance(result, list):
        raise _UnusableError("the answer has no list of series")
    return tuple(_row(one, now) for one in result)


def _row(said: Any, now: float) -> Row:
    labels = said.get("metric") if isinstance(said, dict) else None
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in labels.values()):
        raise _UnusableError("the answer has a series without labels")
    if "value" not in said:
        raise _UnusableError("the answer has a histogram, not a number")
    return Row(labels, _value(said["value"], now))


def _value(said: Any, now: float) -> float:
    if not isinstance(said, list) or len(said) != 2 or not isinstance(said[0], int | float):
        raise _UnusableError("the answer has a value that is none")
    at, text = said
    if not abs(at - now) <= MAX_AGE_SECONDS:
        raise _UnusableError(f"the answer is {now - at:.0f} s old by our clock", of_server=True)
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise _UnusableError("the answer has a value that is no number")
    return float(text)


def _rows_of(one: Followed, answer: Answer) -> Sequence[Row]:
    load = one.autoscale.load
    label = PRESETS[load.preset].label if load.preset is not None else None
    if label is None or load.model is None:
        return answer.rows if load.job is None else answer.where("job", load.job)
    rows = answer.where(label, load.model)
    return [row for row in rows if load.job is None or row.labels.get("job") == load.job]


def _is_scraped_twice(rows: Sequence[Row]) -> bool:
    jobs: dict[str, str] = {}
    for row in rows:
        job = row.labels.get("job", "")
        if jobs.setdefault(row.labels.get("instance", ""), job) != job:
            return True
    return False


def _unscraped(one: Followed, rows: Sequence[Row]) -> str | None:
    """Return a ready replica without numbers, where targets are named by address as is usual.

    Counting them does not tell it apart from one that ends its work and is scraped still.
    """
    instances = {row.labels.get("instance", "") for row in rows}
    replicas = () if one.endpoints is None else one.endpoints.replicas
    wanted = {
        urlsplit(replica.endpoint).netloc: replica.name
        for replica in replicas
        if replica.state is ReplicaState.READY and replica.endpoint is not None
    }
    if not instances & wanted.keys():
        return None
    return next((name for address, name in wanted.items() if address not in instances), None)


def _preset_look(one: Followed, rows: Sequence[Row]) -> dict[Role, list[Sample]]:
    preset = one.autoscale.load.preset
    if preset is None:
        return {}
    named = [Named(row.labels.get(METRIC, ""), _sample(row)) for row in rows]
    return assign_roles(PRESETS[preset], named)


def _sample(row: Row) -> Sample:
    series = json.dumps(sorted(row.labels.items()))
    return Sample(row.labels.get("instance", ""), series, row.value)


def _up(
    one: Followed,
    asked: Asked,
    own: Mapping[str, Sequence[Row]],
    answers: Mapping[str, Answer],
) -> float | None:
    if "up" in own:
        return sum(row.value for row in own["up"])
    job = one.autoscale.load.job
    if asked.up is None or job is None:
        return None
    return len(answers[asked.up].where("job", job))
