"""Reading, writing and streaming where servers take TLS only."""

import pytest

pytest.importorskip("pyspark")

from tests.certificates import Authority

from pyromq import ConnectionConfig, TlsConfig
from pyromq.net.tls.tls_server import ServerTlsConfig, TlsMode
from pyromq.testing import BlockingCluster


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def secure(authority):
    certificate, key = authority.issue("server")
    tls = ServerTlsConfig(certificate=certificate, key=key, mode=TlsMode.ENFORCING)
    with BlockingCluster(tls=tls, connections=ConnectionConfig(tls=TlsConfig(authority=authority.file))) as cluster:
        yield cluster


@pytest.fixture
def connecting(secure, authority):
    """The options of a connection, with a permission that a plan must not show."""
    return {
        "namesrvAddr": secure.namesrv,
        "tlsCa": str(authority.file),
        "accessKey": "me",
        "secretKey": "top-4711",
    }


@pytest.fixture
def written(spark, connecting):
    rows = spark.createDataFrame([(str(number),) for number in range(10)], "body string")
    rows.write.format("rocketmq").options(topic="secure", **connecting).mode("append").save()


@pytest.mark.slow
def test_batches_by_options(spark, connecting, written):
    frame = spark.read.format("rocketmq").options(subscribe="secure", columns="body", **connecting).load()
    assert sorted(bytes(row.body) for row in frame.collect()) == [b"%d" % number for number in range(10)]
    plan = spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended")
    assert "top-4711" not in plan


@pytest.mark.soak
def test_streams_by_options(spark, connecting, written, tmp_path):
    given = {"subscribe": "secure", "columns": "body", "startingOffsets": "earliest"}
    stream = spark.readStream.format("rocketmq").options(**given, **connecting).load()
    query = (
        stream.writeStream.format("rocketmq")
        .options(topic="copies", **connecting)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.lastProgress.numInputRows == 10
    assert "top-4711" not in query.lastProgress.json
    kept = b"".join(file.read_bytes() for file in (tmp_path / "checkpoint").rglob("*") if file.is_file())
    assert b"top-4711" not in kept
