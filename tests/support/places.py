"""Where the repository keeps what tests use."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
SCRIPTS = ROOT / "tests" / "scripts"
