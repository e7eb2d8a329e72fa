"""The record of decisions, and an hour of it replayed in a process of its own."""

import json
import logging
from pathlib import Path

import pytest
from provision_cases import ANSWER, KIND, TARGETS, decision, facts, ready, recorded
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.services.provisioner import record, regrets
from foretell.services.provisioner.lease import FileLease
from foretell.services.provisioner.metrics import ProvisionerMetrics
from foretell.services.provisioner.record import Recorded
from foretell.services.provisioner.regrets import Regrets

HOUR_S = 3600.0


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    recorded(tmp_path, 0.0, 100.0)
    past = Recorded(tmp_path)
    kind, targets = past.engine()
    assert (kind.config, targets) == (KIND.config, TARGETS)
    assert all((a == b).all() for a, b in zip(kind.step_time, KIND.step_time, strict=True))
    assert past.span() == (0.0, 100.0)
    window = past.window(20.0, 60.0, 20.0)
    assert [m.at_s for m in window.moments] == [10.0 * i for i in range(9)]
    assert window.answered == [ANSWER] * 8
    (moment, *_) = window.moments
    assert (moment.ready, moment.instances, moment.arrived) == (2, 2, 2)
    assert (moment.expected_rps, moment.ahead_s, moment.predicted_within) == (0.3, 60.0, 1.0)
    assert past.unreadable == 0


def test_a_torn_line_is_skipped_and_told_and_tears_no_other(tmp_path: Path) -> None:
    recorded(tmp_path, 0.0, 10.0)
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    past = Recorded(tmp_path)
    assert past.span() == (0.0, 0.0)
    assert past.unreadable == 1
    recorded(tmp_path, 20.0, 30.0)
    assert past.span() == (0.0, 30.0)
    assert past.unreadable == 1


def test_the_file_is_bounded_and_both_parts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MAX_BYTES", 20_000)
    recorded(tmp_path, 0.0, 2000.0)
    sizes = [path.stat().st_size for path in tmp_path.glob("decisions.jsonl*")]
    assert len(sizes) == 2
    assert sum(sizes) < 2 * 21_000
    first_s, last_s = Recorded(tmp_path).span()
    assert last_s == 2000.0
    assert 10 * (sum(sizes) // 1000) < last_s - first_s < 2000.0


def test_without_a_record_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no record of decisions"):
        Recorded(tmp_path).span()
    with pytest.raises(ValueError, match="tells of no engine"):
        Recorded(tmp_path).engine()


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    recorded(tmp_path, 0.0, 1300.0)
    with (tmp_path / "decisions.jsonl").open("a") as file:
        file.write('{"at_unix_s": 13')
    asked = ["regret", str(tmp_path), "--minutes", "10"]
    found = CliRunner().invoke(app, [*asked, "--json"])
    assert found.exit_code == 0
    assert "1 lines of the record cannot be read" in found.stderr
    windows = json.loads(found.stdout)
    assert [(w["begins_s"], w["ends_s"]) for w in windows] == [
        (0.0, 600.0),
        (600.0, 1200.0),
        (1200.0, 1300.0),
    ]
    assert [w["wasted_instance_s"] for w in windows] == [600.0, 600.0, 100.0]
    table = CliRunner().invoke(app, asked).stdout
    assert [table.count(f"01-01 00:{at}") for at in ("00", "10", "20")] == [1, 1, 1]
    nothing = CliRunner().invoke(app, ["regret", str(tmp_path / "nowhere")])
    assert nothing.exit_code == 1
    assert "no record of decisions" in nothing.output


async def look_back(folder: Path, now_s: float, metrics: ProvisionerMetrics) -> Regrets:
    """What a replica does that has become active."""
    lease = FileLease(folder, "p")
    assert lease.take()
    found = Regrets(folder, lease, metrics, clock=lambda: now_s)
    await found.look_back()
    lease.release()
    return found


def shown(metrics: ProvisionerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


async def test_an_hour_is_replayed_once_it_is_over_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, 0.0, 2 * HOUR_S + 400.0)
    metrics = ProvisionerMetrics()
    assert (await look_back(tmp_path, HOUR_S + 100.0, metrics)).windows() == []
    for _ in range(2):  # the second time there is nothing to do
        (window,) = (await look_back(tmp_path, HOUR_S + 301.0, metrics)).windows()
    assert (window["begins_s"], window["ends_s"], window["arrivals"]) == (0.0, HOUR_S, 720)
    assert window["wasted_instance_s"] == HOUR_S
    assert window["saved_by_one_more"] == 0
    assert shown(metrics, "foretell_regret_wasted_hours") == 1.0
    assert shown(metrics, "foretell_regret_within_ratio", instances="fewer") == 1.0
    assert shown(metrics, "foretell_regret_within_ratio", instances="measured") == 1.0
    error = shown(metrics, "foretell_regret_forecast_error_ratio", of="arrivals")
    assert error == pytest.approx(0.5)
    assert shown(metrics, "foretell_regret_failures_total") == 0
    monkeypatch.setattr(regrets, "KEPT", 1)
    (last,) = (await look_back(tmp_path, 2 * HOUR_S + 301.0, metrics)).windows()
    assert last["ends_s"] == 2 * HOUR_S


async def test_what_cannot_be_replayed_is_told_and_tried_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = ProvisionerMetrics()
    with caplog.at_level(logging.WARNING):
        found = await look_back(tmp_path, HOUR_S + 301.0, metrics)
        await found.look_back()
    assert "tells of no engine" in caplog.text
    assert shown(metrics, "foretell_regret_failures_total") == 1
    monkeypatch.setattr(regrets, "LIMIT_S", 0.001)
    await look_back(tmp_path, 2 * HOUR_S + 301.0, metrics)
    assert shown(metrics, "foretell_regret_failures_total") == 2
    assert found.windows() == []


def test_what_a_strategy_expects_is_shown() -> None:
    metrics = ProvisionerMetrics()
    metrics.show(facts(0.0, ready("a")), decision(0.0))
    assert shown(metrics, "foretell_forecast_arrivals") == 0.3
