"""PyTorch tensors: used where they lie, in every loop that a trainer has. Left out, in words, where
PyTorch is not installed; `tests/run.sh` installs it beside the other tests' packages."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pccl
import pytest
from child import Child
from group import each, gather, master, run_of, together
from pccl import DataType, DeviceType, ReduceOp, SharedState, TensorInfo
from pccl import SharedStateSyncStrategy as Strategy

if os.environ.get("PCCL_TEST_TORCH"):
    # Asked for by name: not to have it is a failure then.
    import torch
else:
    torch = pytest.importorskip("torch")

DTYPES = {
    DataType.UINT8: torch.uint8,
    DataType.INT8: torch.int8,
    DataType.INT16: torch.int16,
    DataType.UINT16: torch.uint16,
    DataType.UINT32: torch.uint32,
    DataType.INT32: torch.int32,
    DataType.UINT64: torch.uint64,
    DataType.INT64: torch.int64,
    DataType.FLOAT16: torch.float16,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.FLOAT: torch.float32,
    DataType.DOUBLE: torch.float64,
}


@pytest.fixture(scope="module")
def pair() -> Iterator[list[pccl.Communicator]]:
    with run_of(2) as peers:
        yield peers


def operand(count: int, dtype: DataType, tag: int, op: ReduceOp) -> pccl.ReduceDescriptor:
    return pccl.ReduceDescriptor(
        count,
        op,
        tag,
        pccl.ReduceOperandDescriptor(dtype),
        pccl.QuantizationOptions(dtype, pccl.QuantizationAlgorithm.NONE),
    )


def test_it_is_pytorch_2() -> None:
    assert torch.__version__.startswith("2."), torch.__version__


@pytest.mark.parametrize("data_type", list(DataType))
def test_dtypes_correspond(data_type: DataType) -> None:
    assert data_type.to_torch_dtype() is DTYPES[data_type]
    assert DataType.from_torch_dtype(DTYPES[data_type]) is data_type
    for other in (torch.bool, torch.complex64, torch.float8_e4m3fn):
        with pytest.raises(ValueError, match="dtype torch"):
            DataType.from_torch_dtype(other)


@pytest.mark.parametrize("data_type", list(DataType))
def test_tensors_of_every_type_are_reduced_where_they_lie(
    pair: list[pccl.Communicator], data_type: DataType
) -> None:
    dtype = DTYPES[data_type]

    def reduce(index: int, peer: pccl.Communicator) -> None:
        # Small numbers, which add up exactly in every type.
        own = torch.arange(60).reshape(3, 4, 5).to(dtype)
        place, before = own.data_ptr(), own.tolist()
        out = torch.empty_like(own)
        info = peer.all_reduce(own, out, op=ReduceOp.SUM)
        assert info.local_world_size == 2
        assert own.tolist() == before, "what is sent is not touched"
        doubled = torch.arange(0, 120, 2).reshape(3, 4, 5).to(dtype)
        assert out.tolist() == doubled.tolist()
        handle = peer.all_reduce_async(own, own, op=ReduceOp.SUM, tag=1)
        assert handle.wait()[0]
        assert own.tolist() == doubled.tolist() and own.data_ptr() == place
        assert own.dtype is dtype

    each(pair, reduce)


def test_halves_are_rounded_as_torch_rounds(pair: list[pccl.Communicator]) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
        given = [torch.randn(10_007, generator=g).to(dtype) for g in generators]
        wide = (given[0].float() + given[1].float()) / 2

        def reduce(index: int, peer: pccl.Communicator, given: Any = given) -> torch.Tensor:
            x = given[index].clone()
            peer.all_reduce(x, x, op=ReduceOp.AVG)
            return x

        results = each(pair, reduce)
        for result in results:
            assert torch.equal(result, wide.to(dtype))


def test_torch_and_numpy_may_meet(pair: list[pccl.Communicator]) -> None:
    def reduce(index: int, peer: pccl.Communicator) -> list[float]:
        x = torch.full((5,), 1.0 + index, dtype=torch.float64)
        out = np.zeros(5)
        peer.all_reduce(x, out, op=ReduceOp.PROD)
        return [float(value) for value in out]

    assert each(pair, reduce) == [[2.0] * 5] * 2


def test_views_that_are_contiguous_are_used(pair: list[pccl.Communicator]) -> None:
    def reduce(index: int, peer: pccl.Communicator) -> None:
        whole = torch.ones(10, 10)
        peer.all_reduce(whole[3], whole[3], op=ReduceOp.SUM)
        assert whole.sum() == 110 and (whole[3] == 2).all()
        nothing = torch.empty(0, 7)
        peer.all_reduce(nothing, nothing, op=ReduceOp.SUM)
        scalar = torch.tensor(3, dtype=torch.int64)
        peer.all_reduce(scalar, scalar, op=ReduceOp.SUM)
        assert scalar.item() == 6

    each(pair, reduce)


def graph() -> Any:
    return 2 * torch.ones(8, requires_grad=True)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "strided": (lambda: torch.ones(16)[::2], "not contiguous.*contiguous\\(\\)"),
    "transposed": (lambda: torch.ones(2, 4).T, "not contiguous"),
    "expanded": (lambda: torch.ones(1).expand(8), "not contiguous"),
    "channels last": (
        lambda: torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last),
        "not contiguous",
    ),
    "in the graph": (graph, "autograd \\(requires_grad\\).*detach"),
    "sparse": (lambda: torch.eye(8).to_sparse(), "layout torch.sparse"),
    "meta": (lambda: torch.ones(8, device="meta"), "device meta"),
    "complex": (lambda: torch.ones(8, dtype=torch.complex64), "complex64 cannot be reduced"),
    "booleans": (lambda: torch.ones(8, dtype=torch.bool), "bool cannot be reduced"),
    "negated": (lambda: torch._neg_view(torch.ones(8)), "negated view.*resolve_neg"),
    "of another type": (lambda: torch.ones(8, dtype=torch.float64), "send is FLOAT, but recv"),
    "longer": (lambda: torch.ones(9), "recv 36"),
}


@pytest.mark.parametrize("sort", REFUSED)
def test_what_cannot_be_lent_is_refused_in_words(pair: list[pccl.Communicator], sort: str) -> None:
    make, why = REFUSED[sort]
    for call in (pair[0].all_reduce, pair[0].all_reduce_async):
        with pytest.raises(pccl.ArgumentError, match=why):
            call(torch.ones(8), make(), op=ReduceOp.SUM)


def test_a_storage_that_was_emptied_is_refused(pair: list[pccl.Communicator]) -> None:
    x = torch.ones(8)
    x.untyped_storage().resize_(0)
    with pytest.raises(pccl.ArgumentError, match="no memory"):
        pair[0].all_reduce(x, torch.ones(8), op=ReduceOp.SUM)


def test_a_distributed_tensor_is_refused() -> None:
    tensor = pytest.importorskip("torch.distributed.tensor")
    local = torch.ones(8)
    # Made without a process group, which a run of ours does not need.
    fake = torch.Tensor._make_wrapper_subclass(tensor.DTensor, local.shape, dtype=local.dtype)
    with pytest.raises(pccl.ArgumentError, match=r"DTensor.*to_local"):
        TensorInfo.from_torch(fake, "x")


class Exporter:
    """A tensor of a library that knows DLPack, and is not known here."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("data_type", list(DataType))
def test_every_type_comes_through_dlpack(
    pair: list[pccl.Communicator], data_type: DataType
) -> None:
    def reduce(index: int, peer: pccl.Communicator) -> None:
        own = torch.arange(20).reshape(4, 5).to(DTYPES[data_type])
        info = TensorInfo.from_tensor(Exporter(own), "x")
        assert (info.data_ptr, info.numel, info.dtype) == (own.data_ptr(), 20, data_type)
        peer.all_reduce(Exporter(own), Exporter(own), op=ReduceOp.SUM)
        assert own.flatten().tolist() == torch.arange(0, 40, 2).to(DTYPES[data_type]).tolist()

    each(pair, reduce)


def test_parameters_are_used_as_they_are(pair: list[pccl.Communicator]) -> None:
    def reduce(index: int, peer: pccl.Communicator) -> None:
        weight = torch.nn.Parameter(torch.full((4, 4), float(index)))
        (weight * weight).sum().backward()
        peer.all_reduce(weight.grad, weight.grad, op=ReduceOp.SUM)
        assert (weight.grad == 2).all()
        # A leaf that requires a gradient is what the optimizer writes to, and what is averaged.
        peer.all_reduce(weight, weight, op=ReduceOp.AVG)
        assert (weight == 0.5).all() and weight.requires_grad

    each(pair, reduce)


def test_memory_is_kept_until_the_verdict(pair: list[pccl.Communicator]) -> None:
    x = torch.nn.Parameter(torch.ones(1_000_000))
    handle = pair[0].all_reduce_async(x, x, op=ReduceOp.SUM)
    old = x.data
    # The parameter gets other memory; the operation goes on in the old one.
    x.data = torch.zeros(3)
    gc.collect()
    y = torch.ones(1_000_000)
    pair[1].all_reduce(y, y, op=ReduceOp.SUM)
    assert handle.wait()[0]
    assert (old == 2).all() and (x == 0).all() and (y == 2).all()


def test_a_shared_state_of_parameters_and_optimizer_reaches_a_newcomer() -> None:
    def model(seed: int) -> tuple[Any, Any, SharedState]:
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        net(torch.randn(3, 20)).sum().backward()
        optimizer.step()
        tensors = [TensorInfo.from_torch(p, name) for name, p in net.named_parameters()]
        for number, state in enumerate(optimizer.state.values()):
            for key, value in state.items():
                tensors.append(TensorInfo.from_torch(value, f"{number}.{key}"))
        return net, optimizer, SharedState(tensors)

    def bits(state: SharedState) -> list[bytes]:
        return [info.tensor.detach().numpy().tobytes() for info in state.tensors]  # type: ignore[union-attr]

    with master() as node:
        old, new = (pccl.Communicator(node.address) for _ in range(2))
        old.connect()
        _, _, first = model(1)
        for _ in range(3):
            old.sync_shared_state(first)
            first.push_revision()
        together([new.connect, lambda: gather(old, 2)])
        _, _, second = model(2)
        assert bits(first) != bits(second)
        info, _ = together(
            [lambda: new.sync_shared_state(second), lambda: old.sync_shared_state(first)]
        )
        assert info.rx_bytes > 0
        assert bits(first) == bits(second)
        assert first.revision == second.revision == 3
        old.leave()
        new.leave()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_state_of_other_types_is_synchronised(dtype: Any) -> None:
    with run_of(2) as peers:

        def sync(index: int, peer: pccl.Communicator) -> list[float]:
            x = torch.arange(1000).to(dtype) + index
            state = SharedState([TensorInfo.from_torch(x, "x")])
            assert state.tensors[0].device_type is DeviceType.CPU
            peer.sync_shared_state(state, Strategy.RECEIVE_ONLY if index else Strategy.SEND_ONLY)
            return list(x.tolist())

        first, second = each(peers, sync)
        assert first == second == (torch.arange(1000).to(dtype)).tolist()


def test_a_state_follows_parameters_that_get_other_memory() -> None:
    with run_of(2) as peers:

        def sync(index: int, peer: pccl.Communicator) -> float:
            weight = torch.nn.Parameter(torch.zeros(10))
            state = SharedState([TensorInfo.from_torch(weight, "weight")])
            peer.sync_shared_state(state)
            state.push_revision()
            weight.data = torch.full((10,), 7.0 - index)
            peer.sync_shared_state(state, Strategy.RECEIVE_ONLY if index else Strategy.SEND_ONLY)
            weight.data = torch.zeros(11)
            with pytest.raises(pccl.ArgumentError, match="was 10 x FLOAT, and is 11"):
                peer.sync_shared_state(state)
            return float(state.tensors[0].numel)

        assert each(peers, sync) == [10.0, 10.0]


def alike(inputs: int, outputs: int) -> list[Any]:
    """Two models that begin with the same numbers. (Threads share one source of randomness.)"""
    first = torch.nn.Linear(inputs, outputs)
    return [first, copy.deepcopy(first)]


def test_pseudo_gradients_are_averaged_in_a_diloco_loop() -> None:
    """Inner steps apart, then the average of how far each came."""
    nets = alike(4, 1)
    with run_of(2) as peers:

        def train(index: int, peer: pccl.Communicator) -> list[float]:
            net = nets[index]
            outer = [p.detach().clone().requires_grad_() for p in net.parameters()]
            inner_optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
            outer_optimizer = torch.optim.SGD(outer, lr=0.7, momentum=0.9, nesterov=True)
            state = SharedState(
                [TensorInfo.from_torch(p, f"outer {i}") for i, p in enumerate(outer)]
            )
            noise = torch.Generator().manual_seed(index)
            true = torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
            losses = []
            for step in range(12):
                if step > 0 and peer.are_peers_pending():
                    peer.update_topology()
                info = peer.sync_shared_state(state)
                assert info.rx_bytes == 0
                with torch.no_grad():
                    for own, anchor in zip(net.parameters(), outer, strict=True):
                        own.copy_(anchor)
                for _ in range(8):
                    inputs = torch.randn(32, 4, generator=noise)
                    loss = ((net(inputs) - inputs @ true) ** 2).mean()
                    inner_optimizer.zero_grad()
                    loss.backward()
                    inner_optimizer.step()
                    losses.append(loss.item())
                for own, anchor in zip(net.parameters(), outer, strict=True):
                    anchor.grad = anchor.detach() - own.detach()
                descriptors = [
                    pccl.ReduceOpDescriptor.from_torch(
                        p.grad, p.grad, operand(p.grad.numel(), DataType.FLOAT, tag, ReduceOp.AVG)
                    )
                    for tag, p in enumerate(outer)
                    if p.grad is not None
                ]
                while peer.get_attribute(pccl.Attribute.LOCAL_WORLD_SIZE) > 1:
                    reduced = peer.all_reduce_multiple_with_retry(descriptors, max_in_flight=128)
                    assert reduced.local_world_size == 2
                    break
                outer_optimizer.step()
                state.push_revision()
            assert sum(losses[-8:]) < sum(losses[:8]) / 2
            return [x.item() for p in outer for x in p.flatten()]

        first, second = each(peers, train)
        assert first == second, "the same bits at both"


def test_fully_replicated_gradients_in_a_ddp_loop() -> None:
    nets = alike(3, 2)
    with run_of(2) as peers:

        def train(index: int, peer: pccl.Communicator) -> list[float]:
            net = nets[index]
            optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
            noise = torch.Generator().manual_seed(10 + index)
            for _ in range(20):
                net(torch.randn(8, 3, generator=noise)).square().mean().backward()
                handles = []
                for tag, p in enumerate(net.parameters()):
                    assert p.grad is not None
                    handles.append(peer.all_reduce_async(p.grad, p.grad, op=ReduceOp.AVG, tag=tag))
                assert all(handle.wait()[0] for handle in handles)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            return [x.item() for p in net.parameters() for x in p.flatten()]

        first, second = each(peers, train)
        assert first == second


LAUNCH_S = 110
"""Three processes import PyTorch, one after the other on a busy machine."""

LAUNCHED = """
import os, sys, torch, torch.distributed as dist, pccl
dist.init_process_group("gloo")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
master = None
address = [None]
if rank == 0:
    master = pccl.MasterNode("127.0.0.1:0")
    master.run()
    address = [master.address]
dist.broadcast_object_list(address)
peer = pccl.Communicator(address[0], peer_group=local)
if rank == 0:
    peer.connect()
dist.barrier()
if rank == 1:
    peer.connect()
else:
    while peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
        if peer.are_peers_pending():
            peer.update_topology()
dist.barrier()
sizes = [peer.get_attribute(a) for a in pccl.Attribute]
assert sizes == [2, 1, 2, 1], sizes
x = torch.ones(3)
dist.all_reduce(x)
assert (x == 2).all()
dist.barrier()
peer.leave()
if master is not None:
    master.interrupt()
dist.destroy_process_group()
print("rank", rank, "ok", flush=True)
"""


def test_under_torchrun_each_keeps_to_its_own(tmp_path: Path) -> None:
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    with Child(*launcher) as child:
        status, output, errors = child.end(LAUNCH_S)
    assert status == 0, errors
    assert sorted(output.splitlines()) == ["rank 0 ok", "rank 1 ok"], output
