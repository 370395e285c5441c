"""Declarative Pipelines: the template's project runs, and losses it guards against are still there in Spark.

One of the canaries failing is good news: a guard can go.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark.pipelines")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("java") is None and not os.environ.get("JAVA_HOME"), reason="no Java"),
]

COUNT = 20  # messages that are sent at a time


@pytest.fixture(scope="module")
def found(namesrv, tmp_path_factory):
    command = [sys.executable, str(Path(__file__).with_name("pipeline_canaries.py")), namesrv]
    folder = tmp_path_factory.mktemp("pipelines")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_templates_project_reads_each_message_once_and_no_full_refresh_empties_it(found):
    assert found["the_template"] == [2 * COUNT, True]


def test_a_full_refresh_of_a_partitioned_table_loses_what_comes_later(found):
    """Why the template's table is not partitioned: this should be 3 * COUNT."""
    assert found["a_full_refresh_of_a_partitioned_table"] == 2 * COUNT


def test_two_flows_into_one_table_lose_rows(found):
    """Why the template has one flow for each table: this should be 2 * COUNT."""
    assert found["two_flows_into_one_table"] == COUNT


def test_a_materialized_view_over_a_batch_source_of_rows_fails_and_over_a_topic_it_works(found):
    """Why docs do not say that of all sources: the first should be None."""
    assert "UNKNOWN_RESPONSE" in (found["a_view_over_a_batch_source_of_rows"] or "")
    assert found["a_view_over_a_topic"] == COUNT


def test_a_full_refresh_of_a_table_that_forbids_it_fails_without_saying_why(found):
    """Why the template says it in a comment."""
    assert "Cannot find main error class 'TABLE_NOT_RESETTABLE'" in found["a_full_refresh_of_a_table_that_forbids_it"]
