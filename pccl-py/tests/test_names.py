"""Programs of PCCL 1.0: its names, signatures, and what its calls do."""

from __future__ import annotations

import importlib
import inspect
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pccl
import pytest
from group import LIMIT_S, each, failure, gather, master, run_of, together
from pccl import Attribute, DataType, DeviceType, ReduceOp, Result

# Parameters in order, as PCCL 1.0 has them; those after "*" by name only.
SIGNATURES = {
    "Communicator": "address peer_group=0 p2p_connection_pool_size=0",
    "Communicator.get_attribute": "attribute",
    "Communicator.connect": "n_attempts=5",
    "Communicator.update_topology": "",
    "Communicator.are_peers_pending": "",
    "Communicator.optimize_topology": "",
    "Communicator.sync_shared_state": "shared_state strategy=ENFORCE_POPULAR",
    "Communicator.all_reduce": (
        "send recv * op tag=0 operand_descriptor=None quantization_options=None"
    ),
    "Communicator.all_reduce_async": (
        "send recv * op tag=0 operand_descriptor=None quantization_options=None"
    ),
    "Communicator.all_reduce_multiple_with_retry": "descriptors * max_in_flight=4",
    "MasterNode": "listen_address",
    "MasterNode.run": "",
    "MasterNode.interrupt": "",
    "PCCLError": "result func_name",
    "PCCLError.check": "result func_name",
    "DataType.to_torch_dtype": "",
    "DataType.to_numpy_dtype": "",
    "DataType.from_torch_dtype": "dtype",
    "DataType.from_numpy_dtype": "dtype",
    "DeviceType.from_torch_device_type": "device_type",
    "ReduceOperandDescriptor": "datatype distribution_hint=NONE",
    "QuantizationOptions": "quantized_datatype=UINT8 algorithm=MIN_MAX",
    "ReduceDescriptor": "count op tag operand_descriptor quantization_options",
    "ReduceOpDescriptor": "sendbuf_ptr recvbuf_ptr reduce_descriptor",
    "ReduceOpDescriptor.from_torch": "send recv reduce_descriptor",
    "ReduceOpDescriptor.from_numpy": "send recv reduce_descriptor",
    "TensorInfo": "name data_ptr * numel dtype device_type allow_content_inequality",
    "TensorInfo.from_torch": "tensor name * allow_content_inequality=False",
    "TensorInfo.from_numpy": "tensor name * allow_content_inequality=False",
    "SharedState.push_revision": "",
    "SharedStateSyncInfo": "tx_bytes rx_bytes",
    "ReduceInfo": "local_world_size tx_bytes rx_bytes",
    "AsyncReduceHandle.wait": "",
    "cuda.is_available": "",
}

MEMBERS = {
    "Result": (
        "SUCCESS NOT_INITIALIZED INTERNAL_ERROR INVALID_ARGUMENT INVALID_USAGE TOO_FEW_PEERS "
        "MASTER_CONNECTION_FAILED RANK_CONNECTION_FAILED RANK_CONNECTION_LOST "
        "NO_SHARED_STATE_AVAILABLE PENDING_ASYNC_OPS UPDATE_TOPOLOGY_FAILED "
        "TOPOLOGY_OPTIMIZATION_FAILED"
    ),
    "ReduceOp": "SUM AVG PROD MAX MIN",
    "Attribute": (
        "GLOBAL_WORLD_SIZE LOCAL_WORLD_SIZE NUM_DISTINCT_PEER_GROUPS LARGEST_PEER_GROUP_WORLD_SIZE"
    ),
    "SharedStateSyncStrategy": "ENFORCE_POPULAR RECEIVE_ONLY SEND_ONLY",
    "DataType": ("UINT8 INT8 INT16 UINT16 UINT32 INT32 UINT64 INT64 FLOAT16 BFLOAT16 FLOAT DOUBLE"),
    "DeviceType": "CPU CUDA",
    "DistributionHint": "NONE NORMAL UNIFORM",
    "QuantizationAlgorithm": "NONE MIN_MAX ZERO_POINT_SCALE",
}


def default(value: Any) -> str:
    return str(getattr(value, "name", value))


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_begins_as_that_of_pccl_1_0(name: str) -> None:
    thing: Any = pccl
    for part in name.split("."):
        thing = getattr(thing, part)
    expected = SIGNATURES[name].split()
    named_only = expected[expected.index("*") + 1 :] if "*" in expected else []
    have = [p for p in inspect.signature(thing).parameters.values() if p.name != "self"]
    place = 0
    for wanted in (w for w in expected if w != "*"):
        text, _, value = wanted.partition("=")
        found = next((p for p in have if p.name == text), None)
        assert found is not None, f"{name} has no {text}"
        if wanted in named_only:
            assert found.kind is not found.POSITIONAL_ONLY
        else:
            assert have[place] is found and found.kind is found.POSITIONAL_OR_KEYWORD
            place += 1
        if value:
            assert default(found.default) == value
    words = {w.partition("=")[0] for w in expected}
    more = [p for p in have if p.name not in words]
    assert all(p.default is not p.empty for p in more), "what was added has defaults"


@pytest.mark.parametrize("name", MEMBERS)
def test_enumerations_have_the_members_and_values_of_the_c_interface(name: str) -> None:
    members = list(getattr(pccl, name))
    first = 1 if name == "Attribute" else 0
    assert [m.name for m in members] == MEMBERS[name].split()
    assert [m.value for m in members] == list(range(first, first + len(members)))


def test_descriptors_and_results_have_the_attributes_of_pccl_1_0() -> None:
    what = pccl.ReduceDescriptor(
        2, ReduceOp.AVG, 7, pccl.ReduceOperandDescriptor(DataType.FLOAT), pccl.QuantizationOptions()
    )
    assert what.quantization_options.quantized_datatype is DataType.UINT8
    assert what.operand_descriptor.distribution_hint is pccl.DistributionHint.NONE
    x = np.ones(2, np.float32)
    both = pccl.ReduceOpDescriptor.from_numpy(x, x, what)
    assert both.sendbuf_ptr == both.recvbuf_ptr == x.ctypes.data
    assert both.reduce_descriptor is what
    info = pccl.TensorInfo.from_numpy(x, "x")
    assert (info.name, info.data_ptr, info.numel) == ("x", x.ctypes.data, 2)
    assert (info.dtype, info.device_type) == (DataType.FLOAT, DeviceType.CPU)
    assert info.allow_content_inequality is False
    with pytest.raises(ValueError, match="address 0"):
        pccl.TensorInfo(
            "x",
            0,
            numel=2,
            dtype=DataType.FLOAT,
            device_type=DeviceType.CPU,
            allow_content_inequality=False,
        )
    assert DeviceType.from_torch_device_type("cpu") is DeviceType.CPU
    assert DeviceType.from_torch_device_type("cuda") is DeviceType.CUDA
    assert DeviceType.from_torch_device_type("mps") is None
    assert pccl.cuda.is_available() is False
    assert importlib.import_module("pccl._cuda") is pccl.cuda


@pytest.fixture
def pair() -> Iterator[list[pccl.Communicator]]:
    with run_of(2) as peers:
        yield peers


def test_addresses_do_as_well_as_tensors(pair: list[pccl.Communicator]) -> None:
    def reduce(_: int, peer: pccl.Communicator) -> list[float]:
        x, y = np.ones(3), np.zeros(3)
        what = pccl.ReduceDescriptor(
            3,
            ReduceOp.SUM,
            0,
            pccl.ReduceOperandDescriptor(DataType.DOUBLE),
            pccl.QuantizationOptions(DataType.DOUBLE, pccl.QuantizationAlgorithm.NONE),
        )
        both = pccl.ReduceOpDescriptor(x.ctypes.data, y.ctypes.data, what)
        info = peer.all_reduce_multiple_with_retry([both])
        assert info.local_world_size == 2
        state = pccl.SharedState(
            [
                pccl.TensorInfo(
                    "y",
                    y.ctypes.data,
                    numel=3,
                    dtype=DataType.DOUBLE,
                    device_type=DeviceType.CPU,
                    allow_content_inequality=False,
                )
            ]
        )
        assert peer.sync_shared_state(state).rx_bytes == 0
        return [float(value) for value in y]

    assert each(pair, reduce) == [[2, 2, 2]] * 2


def test_a_launch_that_cannot_be_raises_at_once() -> None:
    x = np.ones(2)
    with master() as node:
        peer = pccl.Communicator(node.address)
        error = failure(lambda: peer.all_reduce_async(x, x, op=ReduceOp.SUM))
        assert error.result is Result.INVALID_USAGE
        peer.connect()
        error = failure(lambda: peer.all_reduce_async(x, x, op=ReduceOp.SUM))
        assert error.result is Result.TOO_FEW_PEERS
        error = failure(peer.optimize_topology)
        assert error.result is Result.INVALID_USAGE
        peer.leave()


def test_the_topology_is_optimised_together(pair: list[pccl.Communicator]) -> None:
    each(pair, lambda _, peer: peer.optimize_topology(timeout=LIMIT_S))
    rings = [peer.members() for peer in pair]
    assert rings[0] == rings[1]
    x = np.ones(2)
    handle = pair[0].all_reduce_async(x, x, op=ReduceOp.SUM)
    assert failure(pair[0].optimize_topology).result is Result.PENDING_ASYNC_OPS
    pair[1].all_reduce(np.ones(2), np.ones(2), op=ReduceOp.SUM)
    assert handle.wait()[0]


def test_the_stepwise_loop_of_its_examples(pair: list[pccl.Communicator]) -> None:
    def work(_: int, peer: pccl.Communicator) -> float:
        parameters = np.zeros(1024, np.float32)
        state = pccl.SharedState([pccl.TensorInfo.from_numpy(parameters, "parameters")])
        changed = True
        for step in range(20):
            if step > 0 and peer.are_peers_pending():
                peer.update_topology()
                changed = True
            if changed:
                peer.optimize_topology()
                peer.sync_shared_state(state)
                state.push_revision()
                changed = False
            gradient = np.full(1024, float(step), np.float32)
            world = peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
            while world > 1:
                handle = peer.all_reduce_async(gradient, gradient, op=ReduceOp.SUM)
                is_success, status, info = handle.wait()
                world = peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
                if is_success:
                    assert (status, info.local_world_size) == (0, 2)
                    break
            parameters += gradient / 2
        return float(parameters[0])

    assert each(pair, work) == [190.0, 190.0]


HOSTS = ["localhost:{}", "127.0.0.1:{}", "[::1]:{}"]


def usable(host: str) -> bool:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind(("::1" if host.startswith("[") else "127.0.0.1", 0))
        except OSError:
            return False
    return True


@pytest.mark.parametrize("host", HOSTS)
def test_names_and_both_sorts_of_address_are_understood(host: str) -> None:
    if not usable(host):
        pytest.skip("this machine has no IPv6")
    node = pccl.MasterNode(host.format(0))
    node.run()
    port = node.address.rpartition(":")[2]
    peers = [pccl.Communicator(host.format(port)) for _ in range(2)]
    peers[0].connect()
    together([peers[1].connect, lambda: gather(peers[0], 2)])
    x = np.ones(10)
    results = each(peers, lambda _, p: p.all_reduce(x, np.empty(10), op=ReduceOp.SUM))
    assert [info.local_world_size for info in results] == [2, 2]
    for peer in peers:
        peer.leave()
    node.interrupt()


def test_a_port_base_and_a_local_rank_make_a_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        base = probe.getsockname()[1] - 1
    with master() as node:
        listen = f"127.0.0.1:{base}"
        first = pccl.Communicator(node.address)
        second = pccl.Communicator(node.address, listen=listen, local_rank=1)
        first.connect()
        together([second.connect, lambda: gather(first, 2)])
        with socket.socket() as taken, pytest.raises(OSError):
            taken.bind(("127.0.0.1", base + 1))
        first.leave()
        second.leave()
    for wrong in (None, "127.0.0.1:0", "127.0.0.1:65535", "127.0.0.1"):
        with pytest.raises(pccl.ArgumentError, match=r"port|rank"):
            pccl.Communicator("127.0.0.1:1", listen=wrong, local_rank=1)
