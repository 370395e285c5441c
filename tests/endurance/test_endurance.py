"""Some seconds of `make endure`: a round of everything, with a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .measuring import Measurements, draw
from .run import Report, endure


@pytest.mark.slow
async def test_a_round_of_everything_loses_nothing_and_is_measured(tmp_path: Path) -> None:
    report = await endure(tmp_path, seconds=1.0, round_seconds=3.0, load=0.5, seed=1, pause_seconds=0.05)
    assert not report.faults, "\n".join(report.faults)
    assert report.confirmed > 50
    names = report.measurements.series.keys()
    assert {"living broker: memory", "living console: threads", "killed broker: descriptors"} <= names
    assert {"living: files", "killed: send: p50", "living: delivery: p50", "living: console: p50"} <= names


def test_a_leak_is_named_with_its_rise() -> None:
    measurements = Measurements()
    for at in range(60):
        for name, value in (("a", 50.0 + at % 3), ("b", 50.0 + at % 3 + at / 2)):
            measurements.add(name, "MB", value)
            measurements.series[name].points[-1] = (60.0 * at, value)
    (is_flat, _), (is_other_flat, text) = measurements.verdicts()
    assert is_flat and not is_other_flat
    assert "b: 6" in text and "RISES by +2" in text


def test_the_warm_part_is_not_judged() -> None:
    measurements = Measurements()
    for at in range(60):
        value = 2.0 * at if at < 15 else 30 + 0.04 * (at - 15)
        measurements.add("a", "MB", value)
        measurements.series["a"].points[-1] = (60.0 * at, value)
    [(is_flat, text)] = measurements.verdicts()
    assert is_flat, text


def test_waits_are_measured_since_the_last_look() -> None:
    measurements = Measurements()
    for waits in ([1.0, 2.0, 30.0], [5.0], []):
        for seconds in waits:
            measurements.note_wait("send", seconds)
        measurements.add_waits()
    found = {name: [value for _, value in series.points] for name, series in measurements.series.items()}
    assert found == {"send: p50": [2_000, 5_000], "send: p99": [30_000, 5_000]}


@pytest.mark.parametrize(("fault", "rise", "is_good"), [(False, 0, True), (True, 0, False), (False, 30, False)])
def test_a_run_ends_well_without_faults_and_rises(fault: bool, rise: float, is_good: bool) -> None:
    report = Report(Measurements(), faults=["lost"] if fault else [])
    for at in range(60):
        report.measurements.add("a", "MB", 50.0)
        report.measurements.series["a"].points[-1] = (60.0 * at, 50.0 + at % 3 + rise * at / 60)
    assert report.is_good is is_good


@pytest.mark.slow  # matplotlib is loaded
def test_the_picture_has_a_panel_for_each_unit(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measurements = Measurements()
    for unit in ("MB", "ms"):
        for value in (1.0, 2.0):
            measurements.add(f"in {unit}", unit, value)
            measurements.add(f"drawn only in {unit}", unit, value, judged=False)
    draw(measurements, [0.0], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_points_of_all_series_are_saved(tmp_path: Path) -> None:
    measurements = Measurements()
    measurements.add("a", "MB", 1.5)
    measurements.save(tmp_path / "series.json")
    series = json.loads((tmp_path / "series.json").read_text())["a"]
    assert series["unit"] == "MB"
    assert [value for _, value in series["points"]] == [1.5]
