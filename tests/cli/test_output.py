"""What a terminal shows, and how values read."""

from __future__ import annotations

import io
from datetime import timedelta
from decimal import Decimal

import pytest

from garrison.cli.arguments import dollars, duration, quantity, resource_name
from garrison.cli.cluster_tables import status_tables
from garrison.cli.confirm import confirm
from garrison.cli.output import show
from garrison.cli.session import Interrupted
from garrison.cli.text import cost, number, printable, span, usd
from garrison.cli.waiting import summary
from garrison.models.cluster_state import Phase
from garrison.models.group import NodeStatus
from tests.cli.fake_garrison import node, status


class Screen(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["10", "40", "200"])
def test_a_narrow_terminal_cuts_no_value_off(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    name = "sim-" + "0123456789" * 6
    shown = status(nodes=(node(0, provider_id=name, message="a few words"), node(1)))

    show(status_tables(shown), screen)

    text = screen.getvalue()
    assert name in text
    assert "10.0.0.2" in text
    assert "NodeReady" in text
    assert "\x1b[32mrunning" in text
    assert "…" not in text


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()

    show(status_tables(status()), screen)

    assert "\x1b[32m" not in screen.getvalue()


def test_ctrl_c_at_a_question_says_what_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hesitating:
        def readline(self) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Hesitating())

    with pytest.raises(Interrupted, match="nothing was bought"):
        confirm("Buy it", otherwise="nothing was bought")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("20m", 1200), ("12h", 43_200), ("2d", 172_800), ("45", 45), ("1.5h", 5400)],
)
def test_durations(text: str, seconds: int) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("94.56", "94.56"),
        ("1", "1.00"),
        ("0.0104", "0.0104"),
        ("2.50000", "2.50"),
        ("1E+2", "100.00"),
    ],
)
def test_rates_are_exact_with_two_decimals_at_least(amount: str, text: str) -> None:
    assert usd(Decimal(amount)) == text


def test_an_unknown_rate_is_not_zero() -> None:
    assert usd(None) == "unknown"
    assert usd(Decimal(0)) == "0.00"


@pytest.mark.parametrize(
    ("amount", "text"), [("0", "0.00"), ("0.001", "<0.01"), ("0.005", "0.00"), ("1.577", "1.58")]
)
def test_costs_are_cents(amount: str, text: str) -> None:
    assert cost(Decimal(amount)) == text


def test_other_values_read_well() -> None:
    assert [span(timedelta(seconds=s)) for s in (-5, 0, 59, 3660, 90_061)] == [
        "0s",
        "0s",
        "59s",
        "1h 1m",
        "1d 1h",
    ]
    assert [number(v) for v in (None, 8, Decimal("8.50"), Decimal(100))] == ["-", "8", "8.5", "100"]
    assert [dollars("1"), quantity("0"), resource_name("a")] == [1, 0, "a"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\r\nc", "a b c"),
        ("训练 🚂", "训练 🚂"),
        ("\u202eabc", "\\u202eabc"),
        ("\udcff", "\\udcff"),
    ],
)
def test_a_terminal_only_shows_text_and_never_obeys_it(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_is_left_counts_only_machines_that_were_bought() -> None:
    bought = node(0, provider_id="i-1")
    never = node(1, provider_id=None, status=NodeStatus.PENDING)

    one = summary(status(Phase.TERMINATING, nodes=(bought, never)))
    none = summary(status(Phase.TERMINATING, nodes=(never,)))

    assert "1 node left" in one
    assert "left" not in none
