"""What operators are answered about key-value settings."""

from pyromq.remoting.headers import (
    DeleteKv,
    KvNamespace,
    KvValue,
    PutKv,
)


async def test_a_value_is_kept(client):
    await client.ask(PutKv(namespace="n", key="k", value="v"))
    assert (await client.ask(KvValue(namespace="n", key="k"))).fields == {"value": "v"}
    assert (await client.body(KvNamespace(namespace="n"))).table == {"k": "v"}
    await client.ask(DeleteKv(namespace="n", key="k"))
    response = await client.ask(KvValue(namespace="n", key="k"), code=22)
    assert response.remark == "No config item, Namespace: n Key: k"
    await client.ask(DeleteKv(namespace="n", key="k"))


async def test_an_unknown_namespace_is_refused(client):
    response = await client.ask(KvNamespace(namespace="n"), code=22)
    assert response.remark == "No config item, Namespace: n"


async def test_a_value_needs_its_name(client):
    for header in PutKv(namespace="n", value="v"), PutKv(namespace="", key="k", value="v"):
        response = await client.ask(header, code=1)
        assert response.remark == "namespace or key is null"
