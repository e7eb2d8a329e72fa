"""The alert rules in `deploy/observability/rules.yml`."""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

RULES = Path(__file__).parents[1] / "deploy" / "observability" / "rules.yml"


class Alert(NamedTuple):
    name: str
    expression: str
    runbook_url: str

    @property
    def signal(self) -> str:
        """The expression that is compared with the bound, in parentheses."""
        found = re.fullmatch(r"(\(.*\)) [<>=]+ [\d.]+", self.expression, re.DOTALL)
        assert found, self.name
        return found[1]


ALERTS = [
    Alert(rule["alert"], rule["expr"], rule["annotations"]["runbook_url"])
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
]
