"""Metadata: every kind that travels, and every kind that does not."""

import enum
import math
from collections import OrderedDict, UserDict
from types import MappingProxyType

import numpy as np
import pytest
from node_kit import node_pair

import tensorbus as tb


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


def through(pair, metadata, value=None):
    source, sink = pair
    source.send_output("out", value, metadata)
    return sink.next(10).metadata


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize("value", [
    True, False, 0, 1, -1, 2**63 - 1, -(2**63), 0.0, -0.5, 1e308, math.inf, -math.inf, "", "text",
    "grüße 日本 \U0001f600", [], [1, 2, -(2**63)], [1.5, -2.5], ["", "a", "日"], [0.5] * 1000,
])  # fmt: skip
def test_values_arrive_as_they_are(pair, value):
    got = through(pair, {"key": value})["key"]
    assert got == value and type(got) is type(value)
    if isinstance(value, list) and value:
        assert {type(item) for item in got} == {type(item) for item in value}


def test_not_a_number_arrives(pair):
    got = through(pair, {"one": math.nan, "many": [math.nan, 1.0]})
    assert math.isnan(got["one"]) and math.isnan(got["many"][0])


@pytest.mark.parametrize("value, expected", [
    (np.int8(-3), -3), (np.uint64(7), 7), (np.float32(0.5), 0.5), (np.float64(0.1), 0.1),
    (np.bool_(True), True), (np.bool_(False), False), (np.str_("s"), "s"), (np.array(4), 4),
    (np.array([1, 2], np.int16), [1, 2]), (np.array([0.5, 1]), [0.5, 1.0]),
    (np.array(["a"]), ["a"]),
    ([np.int64(1), 2, np.uint8(3)], [1, 2, 3]), ([np.float32(0.5), 1], [0.5, 1.0]),
    (np.array([]), []),
    ((1, 2), [1, 2]), (("a", "b"), ["a", "b"]), ((), []), ([1, 2.5], [1.0, 2.5]),
    ([2.5, 1], [2.5, 1.0]),
    (Colour.RED, 3), ([Colour.RED], [3]),
])  # fmt: skip
def test_values_that_become_plain_ones(pair, value, expected):
    got = through(pair, {"key": value})["key"]
    assert got == expected and type(got) is type(expected)
    if isinstance(expected, list):
        assert [type(item) for item in got] == [type(item) for item in expected]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [1, 2**64], np.uint64(2**64 - 1), 10**400])
def test_integers_beyond_64_bits_are_an_error(pair, value):
    with pytest.raises(OverflowError, match="'frames'.*64-bit"):
        through(pair, {"fine": 1, "frames": value})
    assert through(pair, {"fine": 1}) == {"fine": 1}


def test_an_integer_among_floats_that_is_no_float_is_an_error(pair):
    with pytest.raises(OverflowError, match="'many'"):
        through(pair, {"many": [0.5, 10**400]})


@pytest.mark.parametrize("value, what", [
    (None, "NoneType"), (b"bytes", "bytes"), ({}, "dict"), ({"a": 1}, "dict"), (1j, "complex"),
    ({1}, "set"), (object(), "object"), ([[1]], "list"), ([None], "NoneType"), ([b"x"], "bytes"),
    ([True], "bool"), ([1, "a"], "str"), (["a", 1], "int"), ([0.5, "a"], "str"),
    ([1, True], "bool"),
    (np.zeros((2, 2)), "ndarray"), (np.array([True]), "bool"), (np.complex64(1), "complex"),
    (range(3), "range"), (slice(1), "slice"),
])  # fmt: skip
def test_other_types_are_an_error_that_names_the_key(pair, value, what):
    with pytest.raises(TypeError, match=f"'odd'.*'(numpy[.])?{what}.*cannot be sent; use"):
        through(pair, {"fine": 1, "odd": value})
    assert through(pair, {"fine": 1}) == {"fine": 1}


@pytest.mark.parametrize("key", [1, None, b"key", ("a",)])
def test_keys_are_text(pair, key):
    with pytest.raises(TypeError, match="keys are str"):
        through(pair, {key: 1})


@pytest.mark.parametrize("key", ["", "x" * 256, "日" * 86])
def test_keys_have_a_length(pair, key):
    with pytest.raises(tb.InvalidError, match="1 to 255 bytes"):
        through(pair, {key: 1})
    assert through(pair, {"x" * 255: 1, "日" * 85: 2}) == {"x" * 255: 1, "日" * 85: 2}


def test_text_with_a_nul_or_no_unicode_is_an_error(pair):
    for metadata in ({"key": "a\0b"}, {"key": ["a\0b"]}, {"a\0b": 1}):
        with pytest.raises(ValueError, match="NUL"):
            through(pair, metadata)
    for metadata in ({"key": "\ud800"}, {"key": ["fine", "\ud800"]}, {"\ud800": 1}):
        with pytest.raises(ValueError, match="no Unicode"):
            through(pair, metadata)


def test_bytes_that_were_no_utf8_are_sent_on_as_they_were(pair):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert through(pair, {"one": odd, "many": [odd]}) == {"one": odd, "many": [odd]}


def test_mappings_of_any_kind(pair):
    for mapping in (OrderedDict(b=1, a=2), UserDict(b=1, a=2), MappingProxyType({"b": 1, "a": 2})):
        assert list(through(pair, mapping).items()) == [("b", 1), ("a", 2)]
    assert through(pair, {}) == {} and through(pair, None) == {}


@pytest.mark.parametrize("metadata", [5, "text", [("a", 1)], b"x", 0, False])
def test_metadata_is_a_mapping(pair, metadata):
    with pytest.raises(TypeError, match="metadata must be a dict or None"):
        through(pair, metadata)


def test_a_mapping_that_lies(pair):
    class Liar(dict):
        def items(self):
            return [(1,)]

    class Broken(UserDict):
        def items(self):
            raise RuntimeError("no items today")

    with pytest.raises(TypeError, match="not a pair"):
        through(pair, Liar(a=1))
    with pytest.raises(RuntimeError, match="today"):
        through(pair, Broken(a=1))


def test_the_key_of_ours_is_refused_and_hidden(pair):
    with pytest.raises(ValueError, match="tensorbus.value"):
        through(pair, {"tensorbus.value": "arrow"})
    assert through(pair, {"a": 1}, "text") == {"a": 1}
    assert through(pair, None, "text") == {}


def test_the_limit_of_a_message(pair):
    big = {"text": "x" * 60_000}
    assert through(pair, big) == big
    assert through(pair, big, np.zeros(1000)) == big
    with pytest.raises(tb.LimitError, match="`text`.*65536"):
        through(pair, {"text": "x" * 70_000})
    many = {f"key {n}": n for n in range(2500)}
    assert through(pair, many) == many


def test_every_event_has_a_dict_of_its_own(pair):
    source, sink = pair
    source.send_output("out", None, {"a": [1]})
    source.send_output("out")
    first = sink.next(10)
    first.metadata["a"].append(2)
    assert first.metadata == {"a": [1, 2]}
    second = sink.next(10)
    assert second.metadata == {} and first.metadata == {"a": [1, 2]}
    second.metadata["mine"] = 1
    assert second.metadata == {"mine": 1}


def test_a_list_that_changes_while_it_is_read(pair):
    class Shrinking:
        """Its tolist() takes elements out of the list that it is in."""

        ndim = 0
        dtype = "int64"

        def tolist(self):
            mine.clear()
            return 5

    mine = [1, Shrinking(), 3, 4]
    assert through(pair, {"key": mine}) == {"key": [1, 5, 3, 4]}
