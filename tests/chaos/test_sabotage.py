from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos import sabotage


@pytest.mark.parametrize("name", sorted(sabotage.SABOTAGES))
def test_every_sabotage_finds_what_it_breaks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[bool] = []

    def note(owner: Any, attribute: str, value: object) -> None:
        broken.append(getattr(owner, attribute) is not value)

    monkeypatch.setattr(sabotage, "_replace", note)
    monkeypatch.setenv("GARRISON_DATA_DIR", str(tmp_path))

    sabotage.SABOTAGES[name]()

    assert broken
    assert all(broken)
