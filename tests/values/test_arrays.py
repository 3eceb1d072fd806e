"""Arrays and tensors come back with their dtype, shape, order and bytes. Neither library is imported for it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.errors import DamagedError, EncodeError, FormatError
from rolltape.values import Foreign, Memory, decode, encode, fingerprint
from tests.values.support import Tape, there_and_back

np = pytest.importorskip("numpy", reason="the frameworks' environment has it")


def same(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and one.dtype == other.dtype
        and one.dtype.char == other.dtype.char
        and one.shape == other.shape
        and one.tobytes("C") == other.tobytes("C")
    )


DTYPES = [
    "?", "i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4", "<f8",
    ">f8", "<c8", ">c8", "<c16", "M8[ns]", "M8[D]", ">M8[s]", "m8[ms]", "m8", "S3", "U2", ">U2", "S0", "U0", "V5",
    "q", "Q",
    [("a", "<i4"), ("b", ">f8")], [("t", [("x", "i1"), ("y", "U3")]), ("m", "<f4", (2, 3))],
    {"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [3, 16], "itemsize": 32},
]  # fmt: skip


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.data())
@settings(max_examples=200, deadline=None)
def test_arrays_of_any_dtype_and_shape_come_back(spec: Any, shape: list[int], data: Any) -> None:
    """Scalars of them too. What lies between the fields of a structure does not count."""
    dtype = np.dtype(spec)
    size = dtype.itemsize * int(np.prod(shape, dtype=int))
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if dtype.kind in "?bUV":
        raw = bytes(byte % 2 for byte in raw) if dtype.kind in "?b" else bytes(size)
    array = np.ndarray(shape, dtype, bytearray(raw))
    assert same(there_and_back(array), array)
    assert fingerprint(array) == fingerprint(there_and_back(array))
    if array.size:
        scalar = array.flat[0]
        again = there_and_back(scalar)
        assert type(again) is type(scalar) and again.dtype == scalar.dtype
        if not (dtype.kind in "fc" and scalar != scalar):
            assert again.tobytes() == scalar.tobytes()


def test_order_and_layout() -> None:
    """Fortran's order is kept. Views, strides and read-only flags are not: the values are."""
    base = np.arange(24, dtype="<i4").reshape(4, 6)
    for array in (base[::2, ::-3], base.T, np.asfortranarray(base), np.broadcast_to(base[0], (3, 6)), base[1:1]):
        again = there_and_back(array)
        assert same(again, array) and again.flags.writeable
    assert there_and_back(base.T).flags.f_contiguous and not there_and_back(base[::2]).flags.f_contiguous
    again = there_and_back(base)
    again[0, 0] = 7
    assert there_and_back(np.array(3.5)).shape == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.arange(3, dtype="<i2"), '{"$array":"<i2","shape":[3],"data":{"$bytes":"AAABAAIA"}}'),
        (
            np.asfortranarray(np.arange(4, dtype="u1").reshape(2, 2)),
            '{"$array":"|u1","shape":[2,2],"order":"F","data":{"$bytes":"AAIBAw=="}}',
        ),
        (
            np.zeros((), [("a", "u1"), ("b", "<f4", (2,))]),
            '{"$array":{"names":["a","b"],"formats":["|u1",{"base":"<f4","shape":[2]}],"offsets":[0,1],'
            '"titles":[null,null],"itemsize":9,"aligned":false},"shape":[],"data":{"$bytes":"AAAAAAAAAAAA"}}',
        ),
        (np.float64(0.5), '{"$scalar":"<f8","value":0.5}'),
        (np.int8(-1), '{"$scalar":"|i1","value":-1}'),
        (np.complex64(1j), '{"$scalar":"<c8","value":{"$complex":[0.0,1.0]}}'),
        (np.str_("a"), '{"$scalar":"<U1","value":"a"}'),
        (np.datetime64("1970-01-02"), '{"$scalar":"<M8[D]","data":{"$bytes":"AQAAAAAAAAA="}}'),
    ],
)
def test_these_tags_are_the_file_format(value: Any, text: str) -> None:
    assert encode(value).json.decode() == text
    assert same(decode(text.encode()), value)


def test_scalars_keep_their_types() -> None:
    for kind in ("float64", "float32", "float16", "longdouble", "int64", "longlong", "uint8", "bool", "clongdouble"):
        value = np.dtype(kind).type(1) / np.dtype(kind).type(1) if kind != "bool" else np.bool_(True)
        value = np.dtype(kind).type(value)
        again = there_and_back({"reward": [value]})["reward"][0]
        assert type(again) is type(value) and again == value
    assert np.isnan(there_and_back(np.float32("nan"))) and there_and_back(np.float64(0.1)).hex() == (0.1).hex()
    assert there_and_back({np.str_("a"): np.bytes_(b"b")}) == {np.str_("a"): np.bytes_(b"b")}


def test_long_double_has_one_text() -> None:
    """Six of its sixteen bytes are anything."""
    values = [np.ones(50, np.longdouble) / 3 for _ in range(20)]
    assert (
        len({encode(value).json for value in values}) == 1 and there_and_back(values[0]).tolist() == values[0].tolist()
    )
    padded = np.zeros(3, {"names": ["a"], "formats": ["i1"], "itemsize": 8})
    dirty = np.ndarray(3, padded.dtype, bytearray(b"\0" + b"x" * 7) * 3)
    assert encode(dirty).json == encode(padded).json


def test_large_ones_go_to_the_pack() -> None:
    encoded = encode({"ids": np.arange(100_000)})
    assert len(encoded.json) < 200 and [len(data) for data in encoded.blobs.values()] == [800_000]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([None]), "Python objects: pass .tolist"),
        (np.array([(1, None)], [("a", "i4"), ("b", "O")]), "Python objects: pass .tolist"),
        (np.ma.array([1]), "MaskedArray cannot be recorded"),
        (np.array([1]).view(np.recarray), "recarray cannot be recorded"),
        (np.dtype("f4"), "cannot be recorded"),
    ],
)
def test_others_are_refused(value: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=f"^/x: .*{message}"):
        encode({"x": value})


def test_strings_of_any_length_are_refused() -> None:
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("this NumPy has none")
    with pytest.raises(EncodeError, match="tolist"):
        encode(np.array(["a"], np.dtypes.StringDType()))


@pytest.mark.parametrize(
    "text",
    [
        '{"$array":"<f4","shape":[2],"data":{"$bytes":"AAAA"}}',
        '{"$array":"<f4","shape":[-1],"data":{"$bytes":""}}',
        '{"$array":"nope","shape":[],"data":{"$bytes":""}}',
        '{"$array":"O","shape":[1],"data":{"$bytes":"AAAAAAAAAAA="}}',
        '{"$array":1,"shape":[],"data":{"$bytes":""}}',
        '{"$array":{"names":[]},"shape":[],"data":{"$bytes":""}}',
        '{"$scalar":"<f4","data":{"$bytes":""}}',
        '{"$array":{"names":["a"],"formats":["O"],"offsets":[0],"titles":[null],"itemsize":8,"aligned":false},'
        '"shape":[1],"data":{"$bytes":"AAAAAAAAAAA="}}',
        '{"$scalar":"O","data":{"$bytes":"AAAAAAAAAAA="}}',
        '{"$scalar":"O","value":1}',
        '{"$scalar":"<f4"}',
        '{"$scalar":"|u1","value":300}',
    ],
)
def test_an_array_that_is_not_whole_is_damage(text: str) -> None:
    """One of Python objects above all, whose bytes would be addresses."""
    with pytest.raises(DamagedError):
        decode(text.encode())


def test_arrays_in_histories() -> None:
    """NumPy compares item by item; here what is written is compared."""
    tape = Tape()
    history: list[Any] = [{"role": "user", "content": "x" * 300, "image": np.arange(40)}]
    for turn in range(4):
        history.append({"role": "user", "content": f"{turn}" * 300, "score": np.float64(turn)})
        tape.record(history)
    history[0]["image"][3] = 7
    tape.record(history)
    assert tape.bytes() < 4000 and len(tape.written[3].json) < 600
    assert tape.read(3)[0]["image"][3] == 3 and tape.read(4)[0]["image"][3] == 7
    first = tape.read(3)
    first[0]["image"][0] = 9
    assert tape.read(3)[0]["image"][0] == 0 and encode(first[4], memory=Memory()).json == encode(history[4]).json


def test_types_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="the frameworks' environment has it")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"):
        array = np.ones(3, getattr(ml_dtypes, name))
        assert same(there_and_back(array), array)
        assert type(there_and_back(array[0])) is type(array[0]) and there_and_back(array[0]) == array[0]
    assert encode(np.ones(1, ml_dtypes.bfloat16)).json == (
        b'{"$array":"ml_dtypes:bfloat16","shape":[1],"data":{"$bytes":"gD8="}}'
    )


def test_without_numpy_an_array_is_an_error_or_a_stand_in() -> None:
    program = (
        "import sys\n"
        "from rolltape.errors import FormatError\n"
        "from rolltape.values import decode, encode\n"
        "text = sys.stdin.buffer.read()\n"
        "try: decode(text)\n"
        "except FormatError as error: assert 'Import numpy first' in str(error), error\n"
        "else: raise AssertionError\n"
        "shown = decode(text, foreign=True)\n"
        "assert encode(shown).json == text and shown[0].fields['shape'] == [2]\n"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules\n"
    )
    text = encode([np.zeros(2), np.float32(1), np.ones(1, [("a", "i1")])]).json
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, input=text, check=True)


# ---- PyTorch --------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="the frameworks' environment has it")


def test_tensors_of_every_dtype_come_back(torch: Any) -> None:
    seen = []
    for name, dtype in sorted((str(d), d) for d in vars(torch).values() if isinstance(d, torch.dtype)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tensor = torch.zeros(24, dtype=torch.uint8).random_(0, 2).view(torch.bool).to(dtype).reshape(2, 3, 4)
            except (RuntimeError, NotImplementedError):
                try:
                    tensor = torch.empty(2, 3, dtype=dtype)
                except (RuntimeError, NotImplementedError):
                    continue  # no tensor of it can be made
            if tensor.is_quantized:
                with pytest.raises(EncodeError, match="dequantize"):
                    encode(tensor)
                continue
            again = there_and_back(tensor)
        assert type(again) is torch.Tensor and again.dtype is dtype and again.shape == tensor.shape
        assert encode(again).json == encode(tensor).json
        seen.append(name)
    assert {"torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2", "torch.bool", "torch.complex64"} <= set(seen)


def test_tensors_of_any_shape_and_layout_come_back(torch: Any) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for tensor in (
        base,
        base.t(),
        base[::2, 1::3],
        base[0, 0],
        torch.zeros(0, 3),
        base.expand(2, 4, 6),
        base.to(torch.int8),
    ):
        again = there_and_back(tensor)
        assert torch.equal(again, tensor) and again.dtype is tensor.dtype and again.is_contiguous()
    views = torch.tensor([1 + 2j, 3 - 4j]).conj(), torch.tensor([1 + 2j]).conj().imag
    for view in views:
        assert torch.equal(there_and_back(view), view)
    leaf = torch.ones(2, requires_grad=True)
    assert there_and_back(leaf).requires_grad and not there_and_back(leaf.detach()).requires_grad
    nan = torch.tensor([float("nan"), -0.0])
    assert encode(there_and_back(nan)).json == encode(nan).json


def test_the_tags_of_tensors_are_the_file_format(torch: Any) -> None:
    for value, text in (
        (torch.tensor([[1, 2]], dtype=torch.int16), '{"$tensor":"int16","shape":[1,2],"data":{"$bytes":"AQACAA=="}}'),
        (torch.tensor(1.0, dtype=torch.bfloat16), '{"$tensor":"bfloat16","shape":[],"data":{"$bytes":"gD8="}}'),
        (
            torch.ones(1, requires_grad=True),
            '{"$tensor":"float32","shape":[1],"requires_grad":true,"data":{"$bytes":"AACAPw=="}}',
        ),
    ):
        assert encode(value).json.decode() == text
        assert encode(decode(text.encode())).json.decode() == text


def test_other_tensors_are_refused(torch: Any) -> None:
    leaf = torch.ones(2, requires_grad=True)
    graph = leaf * 2
    graph.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value, message in (
            (torch.ones(2, 2).to_sparse(), "Only dense tensors can: pass .to_dense"),
            (torch.ones(2, device="meta"), "Only dense tensors"),
            (graph, "part of a graph, or has a gradient: pass .detach"),
            (leaf, "part of a graph, or has a gradient: pass .detach"),
            (torch.nn.Parameter(torch.ones(1)), "Parameter cannot be recorded"),
        ):
            with pytest.raises(EncodeError, match=f"^/0: .*{message}"):
                encode([value])


def test_a_device_that_is_not_here_is_named(torch: Any) -> None:
    text = b'{"$tensor":"float32","shape":[1],"device":"cuda:77","data":{"$bytes":"AACAPw=="}}'
    with pytest.raises(FormatError, match=r"the tensor was on cuda:77, which is not here.*Resume where it is, or"):
        decode(text)
    assert type(decode(text, foreign=True)) is Foreign
    with pytest.raises(DamagedError):
        decode(b'{"$tensor":"float32","shape":[2],"data":{"$bytes":"AACAPw=="}}')


def test_a_tensor_on_a_device_comes_back_there(torch: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    tensor = torch.arange(5.0, device="cuda")
    again = there_and_back(tensor)
    assert again.device == tensor.device and torch.equal(again, tensor)
