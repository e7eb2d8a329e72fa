"""Rows and what they need are found beside the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
