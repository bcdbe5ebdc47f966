"""Tensors of all sorts, seen as plain memory. Nothing is copied."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, Union

import numpy as np

from . import _native
from ._enums import DataType
from ._errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SupportsDLPack(Protocol):
    """What exports its memory by DLPack, as tensors of PyTorch and other libraries do."""

    def __dlpack__(self) -> Any:
        """A capsule with the tensor."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Sort and number of the device."""


Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensor: TypeAlias = Union[Array, SupportsDLPack, "Buffer"]
"""A numpy array, a tensor of PyTorch, or anything with DLPack or the buffer protocol: on the CPU,
C-contiguous, in any shape, with one of the element types of `DataType`."""


class View(NamedTuple):
    """Memory of a tensor.

    Attributes:
        address: where it begins.
        nbytes: how long it is, in bytes.
        numel: how many elements that is.
        dtype: of which type.
        owner: what keeps it there.
    """

    address: int
    nbytes: int
    numel: int
    dtype: DataType
    owner: object

    def lent(self) -> tuple[int, int, object]:
        """As the extension takes it."""
        return self.address, self.nbytes, self.owner


def view_of(function: str, name: str, tensor: Any, *, writable: bool) -> View:
    """The memory of `tensor`, which is called `name` in errors of `function`.

    Raises:
        ArgumentError: if it is read-only though it is to be written, not C-contiguous, not on the
            CPU, of a type that cannot be reduced, or no tensor at all.
    """
    try:
        if isinstance(tensor, np.ndarray):
            return _numpy_view(tensor, tensor, writable)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(tensor, torch.Tensor):
            return _torch_view(torch, tensor, writable)
        if hasattr(tensor, "__dlpack__"):
            return _dlpack_view(tensor, writable)
        try:
            memory = memoryview(tensor)
        except TypeError:
            raise _Unusable(
                f"is a {type(tensor).__name__}; a numpy array, a PyTorch tensor, or anything with "
                "DLPack or the buffer protocol can be used"
            ) from None
        return _numpy_view(np.asarray(memory), memory, writable)
    except _Unusable as error:
        raise ArgumentError(function, f"{name} {error}") from None


def pointer_view(address: int, count: int, dtype: DataType) -> View:
    """Memory that the user vouches for."""
    return View(address, count * dtype.itemsize, count, dtype, None)


class _Unusable(Exception):
    """What is wrong with a tensor."""


def _numpy_view(array: Array, owner: object, writable: bool) -> View:
    try:
        dtype = DataType.from_numpy_dtype(array.dtype)
    except ValueError as error:
        raise _Unusable(f"cannot be used: {error}") from None
    if not array.flags.c_contiguous:
        raise _Unusable(
            "is not C-contiguous, and a copy would not be the same memory; pass "
            "numpy.ascontiguousarray(x), and copy the result back"
        )
    if writable and not array.flags.writeable:
        raise _Unusable("is read-only")
    address: int = array.__array_interface__["data"][0]
    # Of a buffer that is no array, `array` is a view that holds it; `owner` may be less.
    return View(address, array.nbytes, array.size, dtype, (array, owner))


def _torch_view(torch: Any, tensor: Any, writable: bool) -> View:
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        raise _Unusable("is a DTensor, whose parts lie elsewhere too; pass its to_local()")
    if tensor.device.type != "cpu":
        raise _Unusable(f"is on the device {tensor.device}; only tensors on the CPU can be used")
    if tensor.layout is not torch.strided:
        raise _Unusable(f"has the layout {tensor.layout}; only dense tensors can be used")
    try:
        dtype = DataType.from_torch_dtype(tensor.dtype)
    except ValueError as error:
        raise _Unusable(f"cannot be used: {error}") from None
    if not tensor.is_contiguous():
        raise _Unusable(
            "is not contiguous, and a copy would not be the same memory; pass x.contiguous(), and "
            "copy the result back"
        )
    if tensor.is_neg():
        raise _Unusable("is a lazily negated view; pass x.resolve_neg()")
    if writable and tensor.requires_grad and not tensor.is_leaf:
        raise _Unusable(
            "was computed under autograd (requires_grad), which would not see that it is "
            "overwritten; pass x.detach()"
        )
    # An alias holds the memory even if the tensor is given other memory meanwhile.
    alias = tensor.detach()
    count: int = alias.numel()
    nbytes = count * dtype.itemsize
    try:
        address: int = alias.data_ptr()
        enough = alias.untyped_storage().nbytes() >= nbytes
    except RuntimeError as error:
        raise _Unusable(f"has no memory of its own: {error}") from None
    if count and not (address and enough):
        raise _Unusable("has no memory: its storage was resized")
    return View(address, nbytes, count, dtype, alias)


def _dlpack_view(tensor: Any, writable: bool) -> View:
    kind = int(tensor.__dlpack_device__()[0])
    if kind != _DLPACK_CPU:
        raise _Unusable(f"is on a device (DLPack sort {kind}); only CPU memory can be used")
    try:
        try:
            capsule = tensor.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = tensor.__dlpack__()
        exported = _native.Dlpack(capsule)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _Unusable(f"cannot be exported by DLPack: {error}") from None
    dtype = _DLPACK_TYPES.get(exported.element)
    if dtype is None:
        raise _Unusable(f"has the element type {exported.element} of DLPack, which has no sums")
    shape, strides = exported.shape, exported.strides
    count = 1
    for length in shape:
        count *= length
    if count and strides is not None and not _is_contiguous(shape, strides):
        raise _Unusable("is not C-contiguous, and a copy would not be the same memory")
    if writable and exported.read_only:
        raise _Unusable("is read-only")
    return View(exported.address, count * dtype.itemsize, count, dtype, exported)


def _is_contiguous(shape: list[int], strides: list[int]) -> bool:
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


_DLPACK_CPU = 1
_DLPACK_TYPES = {
    (0, 8, 1): DataType.INT8,
    (0, 16, 1): DataType.INT16,
    (0, 32, 1): DataType.INT32,
    (0, 64, 1): DataType.INT64,
    (1, 8, 1): DataType.UINT8,
    (1, 16, 1): DataType.UINT16,
    (1, 32, 1): DataType.UINT32,
    (1, 64, 1): DataType.UINT64,
    (2, 16, 1): DataType.FLOAT16,
    (2, 32, 1): DataType.FLOAT,
    (2, 64, 1): DataType.DOUBLE,
    (4, 16, 1): DataType.BFLOAT16,
}
