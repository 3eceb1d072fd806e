"""NumPy's arrays and scalars and PyTorch's tensors, by their bytes. Neither library is ever imported here."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any

from rolltape.errors import FormatError
from rolltape.values.names import look_up

if TYPE_CHECKING:
    from rolltape.values.decoder import Decoder, Fields, Readers
    from rolltape.values.encoder import Encoder, Writer
    from rolltape.values.pointer import Link


def find(kind: type) -> Writer | None:
    """Return what writes arrays, scalars or tensors of exactly this class."""
    array, scalar = look_up("numpy:ndarray"), look_up("numpy:generic")
    if array is not None and kind is array:
        return write_array
    if scalar is not None and issubclass(kind, scalar):
        return write_scalar
    return write_tensor if kind is look_up("torch:Tensor") else None


def write_array(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    np: Any = sys.modules["numpy"]
    notation = _notation(encoder, value, value.dtype, at)
    is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    order = "F" if is_fortran else "C"
    if value.dtype.names is not None:  # what lies between the fields is not part of the value
        clean = np.zeros(value.shape, value.dtype, order)
        for name in value.dtype.names:
            clean[name] = value[name]
        value = clean
    out: dict[str, Any] = {"$array": notation, "shape": list(value.shape)}
    if is_fortran:
        out["order"] = "F"
    return out | {"data": encoder.blob(_bytes(value, order))}


def write_scalar(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    dtype = value.dtype
    out: dict[str, Any] = {"$scalar": _notation(encoder, value, dtype, at)}
    if dtype.type.__module__ == "numpy":
        if dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8):
            return out | {"value": encoder.value(value.item(), (at, "value"), depth + 1)}
        if dtype.kind in "US":
            plain = str(value) if dtype.kind == "U" else bytes(value)
            return out | {"value": encoder.value(plain, (at, "value"), depth + 1)}
    return out | {"data": encoder.blob(_bytes(value, "C"))}


def write_tensor(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
        raise encoder.refused(value, at, "Only dense tensors can: pass .to_dense(), .dequantize(), or its parts.")
    if value.grad_fn is not None or (value.requires_grad and value.grad is not None):
        raise encoder.refused(value, at, "It is part of a graph, or has a gradient: pass .detach() of it.")
    dense = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
    size = dense.numel() * dense.element_size()
    out: dict[str, Any] = {"$tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if value.device.type != "cpu":
        out["device"] = str(value.device)
    if value.requires_grad:
        out["requires_grad"] = True
    return out | {"data": encoder.blob(ctypes.string_at(dense.data_ptr(), size) if size else b"")}


def read_array(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    def build(parts: dict[str, Any]) -> Any:
        dtype, np = _of_bytes(decoder, node["$array"], at), sys.modules["numpy"]
        shape, data = tuple(parts["shape"]), parts["data"]
        if len(data) != dtype.itemsize * math.prod(shape):
            raise ValueError(f"{len(data)} bytes for {shape} of {dtype}")
        return np.ndarray(shape, dtype, bytearray(data), order=parts.get("order", "C"))

    return decoder.guarded(node, at, depth, build)


def read_scalar(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    def build(parts: dict[str, Any]) -> Any:
        dtype, np = _of_bytes(decoder, node["$scalar"], at), sys.modules["numpy"]
        if "value" in parts:
            return dtype.type(parts["value"])
        if len(parts["data"]) != dtype.itemsize:
            raise ValueError(f"{len(parts['data'])} bytes for a {dtype}")
        return np.ndarray((), dtype, bytearray(parts["data"]))[()]

    return decoder.guarded(node, at, depth, build)


def read_tensor(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    def build(parts: dict[str, Any]) -> Any:
        dtype = look_up(f"torch:{node['$tensor']}")
        if dtype is None:
            raise _not_imported(decoder, at, "torch", node["$tensor"])
        torch: Any = sys.modules["torch"]
        tensor, data = torch.empty(parts["shape"], dtype=dtype), parts["data"]
        if len(data) != tensor.numel() * tensor.element_size():
            raise ValueError(f"{len(data)} bytes for {parts['shape']} of {dtype}")
        if data:
            ctypes.memmove(tensor.data_ptr(), data, len(data))
        if "device" in parts:
            try:
                tensor = tensor.to(parts["device"])
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                raise FormatError(
                    f"{decoder.place(at)}: the tensor was on {parts['device']}, which is not here ({error}). Resume "
                    "where it is, or let the step return .cpu() of its tensors."
                ) from error
        return tensor.requires_grad_() if parts.get("requires_grad") else tensor

    return decoder.guarded(node, at, depth, build)


def _bytes(value: Any, order: str) -> bytes:
    data: bytes = value.tobytes(order)
    if value.dtype.str[1:] in ("f16", "c32") and vars(sys.modules["numpy"])["finfo"](value.dtype).nmant == 63:
        clean = bytearray(data)  # ten bytes of x86's long double count, the other six are anything
        for i in range(10, 16):
            clean[i::16] = bytes(len(clean) // 16)
        return bytes(clean)
    return data


def _notation(encoder: Encoder, value: Any, dtype: Any, at: Link) -> Any:
    """Return a dtype as JSON: NumPy's own text where that says it all."""
    np: Any = sys.modules["numpy"]
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _notation(encoder, value, base, at), "shape": list(shape)}
    if dtype.names is not None and dtype.type is np.void:
        fields = [dtype.fields[name] for name in dtype.names]
        return {
            "names": list(dtype.names),
            "formats": [_notation(encoder, value, field[0], at) for field in fields],
            "offsets": [field[1] for field in fields],
            "titles": [field[2] if len(field) > 2 else None for field in fields],
            "itemsize": dtype.itemsize,
            "aligned": dtype.isalignedstruct,
        }
    if dtype.hasobject:
        raise encoder.refused(value, at, "It holds Python objects: pass .tolist() of it, or give it another dtype.")
    if dtype.type.__module__ != "numpy":
        text = f"{dtype.type.__module__}:{dtype.type.__name__}"
        if look_up(text) is dtype.type and np.dtype(dtype.type) == dtype:
            return text
    elif dtype.names is None and dtype == np.dtype(dtype.str):
        # C's `long` and `long long` are as long and yet two types, which only their letters tell apart.
        return dtype.str if np.dtype(dtype.str).type is dtype.type else dtype.str[0] + dtype.char
    raise encoder.refused(value, at, f"Its dtype has no name that a replay could read ({dtype!r}): give it another.")


def _of_bytes(decoder: Decoder, notation: Any, at: Link) -> Any:
    """Return the dtype of recorded bytes, which are never taken for the addresses of objects."""
    dtype = _dtype(decoder, notation, at)
    if dtype.hasobject:
        raise ValueError(f"no bytes are {dtype}")
    return dtype


def _dtype(decoder: Decoder, notation: Any, at: Link) -> Any:
    np = sys.modules.get("numpy")
    if np is None:
        raise _not_imported(decoder, at, "numpy", notation)
    if isinstance(notation, str):
        if ":" not in notation:
            return np.dtype(notation)
        found = look_up(notation)
        if not isinstance(found, type) or not issubclass(found, np.generic):
            raise _not_imported(decoder, at, notation.partition(":")[0], notation)
        return np.dtype(found)
    if "base" in notation:
        return np.dtype((_dtype(decoder, notation["base"], at), tuple(notation["shape"])))
    spec = {name: notation[name] for name in ("names", "offsets", "titles", "itemsize")}
    if not any(spec["titles"]):
        del spec["titles"]
    spec["formats"] = [_dtype(decoder, field, at) for field in notation["formats"]]
    return np.dtype(spec, align=notation["aligned"])


def _not_imported(decoder: Decoder, at: Link, module: str, what: Any) -> FormatError:
    return FormatError(f"{decoder.place(at)}: the value is of {module} ({what}). Import {module} first to read it.")


_HELD: Fields = {"data": dict}
READERS: Readers = {
    "$array": (read_array, {"$array": object, "shape": list, **_HELD}, {"order": str}),
    "$scalar": (read_scalar, {"$scalar": object}, {"value": object, "data": dict}),
    "$tensor": (read_tensor, {"$tensor": str, "shape": list, **_HELD}, {"device": str, "requires_grad": bool}),
}
