"""Where things lie, whatever folder a test is in."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
