from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmem.units import NotBytesError, format_bytes, format_exact, parse_bytes

KIB, MIB, GIB = 2**10, 2**20, 2**30


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (MIB, "1.0 MiB"),
        (500 * MIB, "500.0 MiB"),
        (GIB, "1.000 GiB"),
        (18_976_121_856, "17.673 GiB"),  # the nanoGPT article's figure for these bytes
        (2000 * GIB, "2000.000 GiB"),
        (-3 * MIB // 2, "-1.5 MiB"),
    ],
)
def test_bytes_are_printed_in_the_largest_unit_up_to_gib(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(MIB - 1, "1.0 MiB"), (GIB - 1, "1.000 GiB"), (1 - GIB, "-1.000 GiB")]
)
def test_rounding_never_prints_1024_of_a_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_exact_bytes_have_every_digit() -> None:
    assert format_exact(18_976_121_856) == "18,976,121,856 bytes"
    assert format_exact(1) == "1 byte"


@pytest.mark.parametrize(
    ("quantity", "count"),
    [
        (512, 512),
        ("512", 512),
        ("22 GiB", 22 * GIB),
        ("22gib", 22 * GIB),
        ("1.5GB", 1_500_000_000),
        ("500MiB", 500 * MIB),
        ("2 KiB", 2 * KIB),
        ("1 TiB", 1024 * GIB),
        (" 7 bytes ", 7),
        ("0.5 B", 0),
    ],
)
def test_quantities_have_binary_and_decimal_units(quantity: str | int, count: int) -> None:
    assert parse_bytes(quantity) == count


def test_no_byte_is_lost_to_floating_point() -> None:
    assert int(4.35 * 10**12) == 4_349_999_999_999
    assert parse_bytes("4.35 TB") == 4_350_000_000_000
    assert parse_bytes("9007199254740993") == 2**53 + 1


@pytest.mark.parametrize(
    "quantity",
    [
        "",
        "GiB",
        "-1",
        -1,
        "1,5 GiB",
        "22G",
        "1e9",
        "0x10",
        "1 GiB 2",
        "1 parsec",
        "1.",
        True,
        "nan",
    ],
)
def test_nonsense_is_rejected_with_an_example(quantity: str | int) -> None:
    with pytest.raises(NotBytesError) as refusal:
        parse_bytes(quantity)

    assert "22GiB" in str(refusal.value.hint)


@given(st.integers(min_value=0, max_value=2**60))
def test_exact_bytes_are_read_back(count: int) -> None:
    assert parse_bytes(format_exact(count)) == count


@given(st.integers(min_value=0, max_value=2**60))
def test_the_short_form_is_right_to_its_last_digit(count: int) -> None:
    text = format_bytes(count)

    half_of_last_digit = {"B": 0, "KiB": KIB / 20, "MiB": MIB / 20, "GiB": GIB / 2000}
    error = abs(parse_bytes(text) - count)
    assert error <= half_of_last_digit[text.split()[1]] + 1
