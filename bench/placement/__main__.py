"""Runs the yardstick of placement: `python -m bench placement.yardstick`."""

import sys
from runpy import run_module

sys.argv[1:1] = ["placement.yardstick"]
run_module("bench", run_name="__main__")
