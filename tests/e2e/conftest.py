"""Installations that leave nothing behind."""

from __future__ import annotations

from tests.workers.conftest import installation

__all__ = ["installation"]
