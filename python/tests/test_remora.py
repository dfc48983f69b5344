"""The package as its users meet it. `ci/python` runs this against the wheel."""

import asyncio
import array
import gc
import json
import os
import pathlib
import struct
import threading

import pytest
import remora

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUM = (ROOT / "kernels" / "template.wat").read_text()


@pytest.fixture(scope="module")
def node():
    with remora.Node() as node:
        yield node


@pytest.fixture
def client(node):
    with remora.Client(node.address) as client:
        yield client


@pytest.mark.parametrize("link", ["shm", "udp"])
def test_a_region_is_read_and_written_like_a_bytearray(node, link):
    with remora.Client(node.address, link=link) as client:
        assert client.link == link
        region = client.alloc(4096)
        region[64:69] = b"hello"
        assert region[64:69] == b"hello" and region[64] == ord("h") and len(region) == 4096
        region.write(array.array("d", [1.5, 2.5]), offset=128)
        found = array.array("d", [0.0, 0.0])
        assert region.readinto(found, offset=128) == 16 and list(found) == [1.5, 2.5]
        region[70], region[-1] = 9, 7
        assert region[70] == 9 and region[-1] == region[4095] == 7 and bytes(region) == region.read()
        with pytest.raises(remora.InvalidArgument, match="0 to 255"):
            region[70] = 256
        with pytest.raises(IndexError):
            region[-4097]
        assert region.fetch_add(0, 5) == 0 and region.compare_swap(0, 5, 7) == 5 and region[0] == 7
        with pytest.raises(remora.InvalidArgument, match="does not grow"):
            region[0:2] = b"three"
        with pytest.raises(IndexError):
            region[4096]
        with pytest.raises(remora.InvalidArgument):
            region.read(0, 1 << 40)
        region.free()


def test_kernels_look_things_up_in_every_place(client):
    table = client.load_table({"apple": "red", b"pear": b"green"})
    assert len(table) == 2
    for place in ["client", "nic", "host"]:
        assert client.get(table, "pear", place) == b"green" and client.get(table, "plum", place) is None
        assert client.get_many(table, ["apple", "plum", "pear"], place) == [b"red", None, b"green"]
    with pytest.raises(TypeError, match="bytes or str, not int"):
        client.get_many(table, ["apple", 3])
    calls = [client.submit_get(table, key) for key in ["pear", "apple", "plum"]]
    assert [call.result() for call in calls] == [b"green", b"red", None]
    with pytest.raises(remora.InvalidArgument, match="taken already"):
        calls[0].result()
    values = client.load_list([(10, "ten"), (20, "two")])
    assert client.traverse(values, 20) == b"two" and client.traverse(values, 30) is None
    thing = client.load_object(b"draft")
    client.rewrite(thing, b"final")
    assert client.read_consistent(thing) == b"final" and len(thing) == 5


def test_threads_may_share_a_client(client):
    table = client.load_table((str(n), struct.pack("<Q", n)) for n in range(100))
    failed = []

    def look():
        for n in range(100):
            if client.get(table, str(n)) != struct.pack("<Q", n):
                failed.append(n)

    threads = [threading.Thread(target=look) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed


@pytest.mark.parametrize("link", ["shm", "udp"])
def test_a_forked_process_leaves_what_is_not_its_own(node, link):
    client = remora.Client(node.address, link=link)
    table = client.load_table({"a": "1"})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.get(table, "a")
        except remora.ConnectionFailed as error:
            # Neither a close nor the end of the last reference ends the connection of the process that forked.
            client.close()
            del client
            gc.collect()
            status = 0 if "make one here" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert [client.get(table, "a") for _ in range(10)] == [b"1"] * 10


def test_a_kernel_of_ones_own_by_name(client):
    kernel = client.deploy("sum", SUM)
    words = client.alloc(24)
    words.write(struct.pack("<3Q", 1, 2, 39))
    params = struct.pack("<IIQ", words.key, 3, words.va)
    for place in ["client", "nic", "host"]:
        assert kernel(params, place) == struct.pack("<Q", 42)
    assert client.kernel("sum").submit(params).result() == struct.pack("<Q", 42)
    assert client.kernels() == {"sum": kernel.op}
    with pytest.raises(remora.KernelFailed, match="memory that its caller may not"):
        kernel(struct.pack("<IIQ", words.key ^ 1, 3, words.va))
    client.remove_kernel("sum")
    with pytest.raises(remora.InvalidArgument, match="deploy it"):
        client.kernel("sum")


def test_an_asynchronous_client_has_many_calls_under_way(node):
    async def run():
        client = await remora.AsyncClient.connect(node.address)
        table = await client.load_table((str(n), str(n)) for n in range(100))
        found = await asyncio.gather(*(client.get(table, str(n)) for n in range(101)))
        assert found == [str(n).encode() for n in range(100)] + [None]
        region = await client.alloc(64)
        await client.write(region, b"one-sided", 8)
        assert await client.read(region, 8, 9) == b"one-sided"
        with pytest.raises(remora.InvalidArgument, match="AsyncClient"):
            region.read()
        assert await client.fetch_add(region, 0, 5) == 0 and await client.compare_swap(region, 0, 5, 7) == 5
        await client.free(region)
        with pytest.raises(remora.KernelFailed, match="no such kernel"):
            await client.call(0x7777_7777, b"")
        async with client:
            assert isinstance(await client.kernels(), dict)
        with pytest.raises(remora.ConnectionFailed, match="closed"):
            client.get(table, "1")

    asyncio.run(run())


def test_the_replicated_store_goes_on_without_a_node(tmp_path):
    with remora.LocalCluster(tmp_path) as cluster:
        assert len(cluster.addresses) == 3
        store = cluster.connect(retry=True)
        store.put(7, "hello")
        assert store.get(7) == b"hello" and store.fetch_add(1, 5) == 0
        assert store.compare_swap(7, "hello", "bye") == (True, None)
        assert store.compare_swap(7, "hello", None) == (False, b"bye")
        cluster.stop(0)
        assert store.get(7) == b"bye"
        cluster.restart(0)
        with store:
            store.delete(7)
            assert store.get(7) is None
        with pytest.raises(remora.ConnectionFailed, match="closed"):
            store.get(7)


def test_errors_say_what_to_do():
    with pytest.raises(remora.ConnectionFailed, match="remora node --listen") as caught:
        remora.Client("127.99.98.97", link="udp")
    assert isinstance(caught.value, ConnectionError) and isinstance(caught.value, remora.RemoraError)
    with pytest.raises(remora.InvalidArgument, match="without a port"):
        remora.Client("127.0.0.1:4791")
    with pytest.raises(ValueError, match="moon"):
        remora.where("get", on=["moon"])
    with pytest.raises(remora.InvalidArgument, match="no figure 6"):
        remora.reproduce("strom", "6")
    with pytest.raises(remora.InvalidArgument, match="at least one node"):
        remora.LocalCluster("/nowhere", nodes=0)
    with pytest.raises(remora.InvalidArgument, match="nowhere"):
        remora.Store(["127.0.0.1"], secret="/nowhere")
    for wrong in [{"seconds": 1e18}, {"seconds": float("nan")}, {"records": 1 << 60}]:
        with pytest.raises(remora.InvalidArgument):
            remora.compare(**wrong)
    with pytest.raises(remora.InvalidArgument, match="points"):
        remora.where("get", on=["rambda"], points=1 << 62)
    with pytest.raises(remora.InvalidArgument, match="requests"):
        remora.reproduce("minos", requests=1 << 62)


def test_figures_are_arrow_tables_without_a_copy():
    polars, pyarrow, pandas = (pytest.importorskip(name) for name in ["polars", "pyarrow", "pandas"])
    answers = remora.where("btree", on=["bluefield2", "rambda"], points=4, simulate=0)
    assert len(answers) == 3 + 4 and "p50_ns" in answers.columns
    frame = polars.DataFrame(answers)
    assert frame.filter(polars.col("rank") == 1).height == 2
    arrow = pyarrow.table(answers)
    # The same memory, twice: nothing was copied on the way.
    column = arrow.column("p50_ns").chunk(0).buffers()[1].address
    assert pyarrow.table(answers).column("p50_ns").chunk(0).buffers()[1].address == column
    assert list(arrow.to_pandas()["platform"])[:3] == ["bluefield2"] * 3
    if hasattr(pandas.DataFrame, "from_arrow"):
        assert len(pandas.DataFrame.from_arrow(answers)) == 7
    assert answers.to_pydict()["rank"][:3] == [1, 2, 3]


def test_comparisons_reproductions_and_platforms():
    found = remora.compare(records=500, seconds=0.002, operations=["list", "get-hit"], links=["shm"])
    rows = found.rows.to_pydict()
    assert set(rows["placement"]) == {"client", "nic", "host"} and all(p50 > 0 for p50 in rows["in_flight_1_p50_ns"])
    assert "In short" in str(found) and json.loads(found.to_json())["format"] == "remora-compare/1"
    assert set(found.verdicts.to_pydict()["winner"]) <= {"client", "nic", "host"}
    strom = remora.reproduce("strom", "7")
    assert len(strom.figures) == 18 and len(strom.claims) > 10 and all(strom.trends.to_pydict()["holds"])
    values = remora.platforms(["strom-10g"]).to_pydict()
    assert "host.pcie.read_latency" in values["path"] and len(remora.platforms()) > len(values["path"])
