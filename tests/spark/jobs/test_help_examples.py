"""The examples in the help of `pyromq spark`: each runs to its end, between two clusters that have what it names."""

import shlex
import shutil

import pytest
from tests.cli.json_fields import check_fields
from tests.spark.serving import cluster_in_thread

from pyromq import Admin, Message, Producer
from pyromq.cli.examples import examples
from pyromq.cli.main import run
from pyromq.remoting.bodies import GroupConfig

pytest.importorskip("pyspark")
pytest.importorskip("yaml")
pytestmark = pytest.mark.spark

TOPICS = ("orders", "a", "b", "copy", "stats", "%DLQ%billing")
FILES = {
    "archive.yaml": "topics: orders\nto: {folder}/of-file\ncheckpoint: {folder}/cp\n",
    "metrics.yaml": "topics: orders\nto: {folder}/of-file\ncheckpoint: {folder}/cp\n",
    "mirror.yaml": "topics: orders\ncheckpoint: {folder}/cp\nto_namesrv: {other}\n",
}
FOLDERS = {"lake", "cp", "checkpoint", "counts"}  # are absolute in this test: Spark runs already, in another folder
ENDLESS = ("archive", "metrics", "mirror")


@pytest.fixture(scope="module")
def other():
    with cluster_in_thread() as namesrv:
        yield namesrv


@pytest.fixture(scope="module")
def folder(spark, namesrv, other, tmp_path_factory):
    """A folder with an archive of the topic and its checkpoint."""
    folder = tmp_path_factory.mktemp("examples")
    for address in (namesrv, other):
        with Admin(address) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, 2)
            admin.create_group(GroupConfig(name="billing"))
    with Producer("examples", namesrv) as producer:
        for number in range(10):
            producer.send(Message("orders", b"%d" % number, keys=["order-7"]))
    places = ["--to", f"{folder}/lake", "--checkpoint", f"{folder}/checkpoint"]
    assert run(["spark", "archive", "--namesrv", namesrv, "--topics", "orders", "--once", *places]) == 0
    return folder


@pytest.mark.soak  # jobs take seconds each
@pytest.mark.parametrize("line", [line for line, words in examples().items() if words[0] == "spark"])
def test_examples_work(line, folder, namesrv, other, monkeypatch, tmp_path, capsys):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.format(folder=tmp_path, other=other))
    words = shlex.split(line.replace("127.0.0.1:9876", namesrv).replace("b:9876", other))[1:]
    for number, word in enumerate(words):
        if word in FOLDERS or (word == "stats" and words[number - 1] == "--to"):
            words[number] = f"{tmp_path}/{word}"
    if words[1] in ENDLESS and "--once" not in words:
        words.append("--once")
    assert run(words) == 0, capsys.readouterr().err
    if "json" in words:
        check_fields(words[:2], [capsys.readouterr().out])
